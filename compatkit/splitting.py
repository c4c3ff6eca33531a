"""Cut a model that was not trained here into parts with contracts, and keep them if asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.adapters.blueprints import build_pair, plan, probe, prove, structural
from compatkit.contract import Blueprint, Contract, Data, Protocol, Statistical
from compatkit.publishing import PROBE_BATCH, Draft, normalisation_of
from compatkit.registry.manifest import About, Parent
from compatkit.registry.names import check_name
from compatkit.registry.structuring import unstructure
from compatkit.reports.contracts import port

if TYPE_CHECKING:
    from torch import nn

    from compatkit.workspace import Registry


@attrs.frozen(eq=False)
class SplitPart:
    """One side of a cut model."""

    blueprint: Blueprint
    module: nn.Module
    contract: Contract
    probe_shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Count of parameters, buffers not included."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def describe(self) -> dict[str, str]:
        """Return label and text for people."""
        return {
            "takes": "; ".join(port(one) for one in self.contract.structural.inputs),
            "gives": "; ".join(port(one) for one in self.contract.structural.outputs),
            "parameters": f"{self.parameters:,}",
            "built by": f"{self.blueprint.library}, {self.blueprint.model}, {self.blueprint.approach}",
        }

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for programs, written as in a manifest."""
        return {
            "parameters": self.parameters,
            "blueprint": unstructure(self.blueprint),
            "contract": unstructure(self.contract),
        }


def split(
    model: str,
    point: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    pretrained: bool = False,
    seed: int = 0,
) -> dict[str, SplitPart]:
    """Cut ``model`` at ``point`` and prove that the parts reproduce it bitwise.

    Returns:
        ``{"extractor": ..., "head": ...}``; the head names no classes, because a model does not tell them.

    Raises:
        UnknownName: No such model or split point.
        CutError: More than one tensor crosses, or the parts differ from the whole.
    """
    import torch

    planned = plan(model, point, kwargs=dict(kwargs or {}))
    weights = "pretrained" if pretrained else None
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=seed, weights=weights)
    given = planned.input
    prove(whole, extractor, head, given.size, given.channels)
    data = Data(given.size, "L" if given.channels == 1 else "RGB", given.mean, given.std, given.interpolation)
    with torch.no_grad():
        crossing = extractor.eval()(torch.zeros(PROBE_BATCH, given.channels, *given.size))
    left = structural(extractor, planned.extractor)
    right = structural(head.eval(), planned.head, feature_port=left.outputs[0])
    shapes = ((PROBE_BATCH, given.channels, *given.size), tuple(crossing.shape))
    return {
        side: SplitPart(blueprint, module, Contract(ports, data, Protocol(normalisation_of(module))), shape)
        for side, blueprint, module, ports, shape in (
            ("extractor", planned.extractor, extractor, left, shapes[0]),
            ("head", planned.head, head, right, shapes[1]),
        )
    }


def publish_split(registry: Registry, parts: Mapping[str, SplitPart], prefix: str) -> dict[str, str]:
    """Publish both sides as ``<prefix>.extractor`` and ``<prefix>.head``; return their references."""
    store, published, parents = registry.store, {}, ()
    for side in ("extractor", "head"):
        part = parts[side]
        name = check_name(f"{prefix}.{side}")
        contract = attrs.evolve(
            part.contract, statistical=Statistical(None, probe(part.module, part.probe_shape))
        )
        title = f"{part.blueprint.model} {'up to' if side == 'extractor' else 'after'} {part.blueprint.split}"
        draft = Draft(side, side, title, part.blueprint, part.module, contract)  # type: ignore[arg-type]
        payload = store.put_state(part.module.state_dict(), parameters=draft.parameters)
        reference = store.publish(name, draft.manifest(payload, {}, parents, About()))
        published[side] = f"{reference.name}@{reference.version}"
        parents = (Parent("trained_with", str(reference.digest)),)
    return published
