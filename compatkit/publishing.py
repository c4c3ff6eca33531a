"""From a finished run to manifests: everything a component promises, derived from its module and its run."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.adapters.blueprints import build, build_pair, probe, prove, structural
from compatkit.contract import (
    Anchor,
    Blueprint,
    Contract,
    Data,
    Kind,
    Port,
    Protocol,
    Statistical,
    Structural,
)
from compatkit.errors import CutError, IntegrityError
from compatkit.registry.manifest import About, Edge, Manifest, Parent, Payload
from compatkit.training.context import AuxiliaryHead, TaskState
from compatkit.training.fit import Fit

PROBE_BATCH = 2


@attrs.frozen(eq=False)
class Draft:
    """A component that is ready to be stored: all but the payload and the parents.

    Attributes:
        key: Name below the prefix: ``mnist.extractor``, ``shared.dcc``, ``mnist.head``.
        parent: Key of the extractor that a head was trained with.
    """

    key: str
    kind: Kind
    title: str
    blueprint: Blueprint
    module: nn.Module
    contract: Contract
    parent: str | None = None

    @property
    def parameters(self) -> int:
        """Count of parameters, buffers not included."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def manifest(
        self, payload: Payload, training: Mapping[str, Any], parents: tuple[Parent, ...], about: About
    ) -> Manifest:
        """Return the manifest once the payload is stored and the parents are known."""
        return Manifest(
            kind=self.kind,
            about=attrs.evolve(about, title=about.title or self.title),
            blueprint=self.blueprint,
            payload=payload,
            contract=self.contract,
            training=training,
            parents=parents,
        )


def drafts(fit: Fit) -> Iterator[Draft]:
    """Yield extractors, then shared auxiliary heads, then heads; each proved before it is yielded.

    Raises:
        CutError: The parts, rebuilt from their blueprints, do not reproduce the trained network bitwise.
        IntegrityError: Weights are not finite.
    """
    ports: dict[str, Port] = {}
    parts: list[Draft] = []
    for state in fit.tasks.values():
        extractor, head = _on_cpu(state.extractor), _on_cpu(state.head)
        _prove(state, extractor, head)
        shape = structural(extractor, state.extractor_blueprint)
        ports[state.name] = shape.outputs[0]
        yield Draft(
            f"{state.name}.extractor",
            "extractor",
            f"{state.task.backbone} up to {state.task.split}, trained on {state.task.data.name}",
            state.extractor_blueprint,
            extractor,
            _contract(shape, extractor, attrs.evolve(state.data, labels=None), state.anchors, _image(state)),
        )
        shape = structural(head, state.head_blueprint, feature_port=ports[state.name])
        parts.append(
            Draft(
                f"{state.name}.head",
                "head",
                f"{state.task.backbone} after {state.task.split}, trained on {state.task.data.name}",
                state.head_blueprint,
                head,
                _contract(shape, head, state.data, state.anchors, (PROBE_BATCH, *state.feature_shape[1:])),
                parent=f"{state.name}.extractor",
            )
        )
    first = next(iter(fit.tasks.values()))
    for auxiliary in fit.auxiliary.values():
        if auxiliary.origin is None:
            yield _auxiliary(auxiliary, first, ports[first.name])
    yield from parts


def training_facts(fit: Fit, run: Edge, state: TaskState | None) -> dict[str, Any]:
    """Return the ``training`` part of a manifest; ``state`` is None for what several tasks share."""
    trainer = fit.run["trainer"]
    names = [state.name] if state is not None else list(fit.tasks)
    data = [dict(task["data"]) for task in fit.run["tasks"] if task["name"] in names]
    return {
        "run": {"blob": run.blob, "bytes": run.bytes},
        "seed": trainer["seed"],
        "steps": trainer["steps"],
        "data": data[0] if len(data) == 1 else data,
        "plugins": list(fit.run["plugins"]),
        "initial": sorted({task["initial"] for task in fit.run["tasks"] if task["name"] in names}),
        "frozen": [frozen["digest"] for frozen in fit.run["frozen"].values()],
        "environment": dict(fit.run["environment"]),
    }


def _auxiliary(head: AuxiliaryHead, task: TaskState, port: Port) -> Draft:
    module = _on_cpu(head.module)
    _check_finite(f"shared.{head.name}", module)
    features = torch.zeros(PROBE_BATCH, *task.feature_shape[1:])
    again = build(head.blueprint, state=module.state_dict()).eval()
    with torch.no_grad():
        if not torch.equal(again(features), module(features)):
            raise CutError(
                f"The auxiliary head {head.name!r}, rebuilt from its blueprint, gives other outputs than the trained "
                "one; it is not published. Its module holds state outside its state dict."
            )
    data = attrs.evolve(task.data, labels=head.labels)
    contract = _contract(
        structural(module, head.blueprint, feature_port=port),
        module,
        data,
        [Anchor("auxiliary_head", head.digest, head.name, head.labels)],
        (PROBE_BATCH, *task.feature_shape[1:]),
    )
    return Draft(
        f"shared.{head.name}",
        "auxiliary_head",
        f"Shared auxiliary head {head.name}",
        head.blueprint,
        module,
        contract,
    )


def _contract(
    shape: Structural, module: nn.Module, data: Data, anchors: Sequence[Anchor], probe_shape: tuple[int, ...]
) -> Contract:
    protocol = Protocol(normalisation_of(module), tuple(anchors))
    return Contract(shape, data, protocol, Statistical(None, probe(module, probe_shape)))


def normalisation_of(module: nn.Module) -> Literal["batch", "none"]:
    """Return ``"batch"`` where the module holds batch normalisation, else ``"none"``."""
    return "batch" if any(isinstance(one, _BatchNorm) for one in module.modules()) else "none"


def _prove(state: TaskState, extractor: nn.Module, head: nn.Module) -> None:
    for side, module in (("extractor", extractor), ("head", head)):
        _check_finite(f"{state.name}.{side}", module)
    whole = build_pair(state.extractor_blueprint, state.head_blueprint, seed=0)[0]
    trained: dict[str, Tensor] = {**extractor.state_dict(), **head.state_dict()}
    whole.load_state_dict(trained, strict=True)
    prove(whole, extractor, head, state.data.size, len(state.data.mean))


def _check_finite(name: str, module: nn.Module) -> None:
    for key, value in module.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise IntegrityError(
                f"{name}: the tensor {key!r} holds values that are not finite; the component is not published. "
                "Train again with a lower learning rate or in float32."
            )


def _image(state: TaskState) -> tuple[int, ...]:
    return (PROBE_BATCH, len(state.data.mean), *state.data.size)


def _on_cpu(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU: publishing leaves the fit as it is."""
    return copy.deepcopy(module).to("cpu", memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
