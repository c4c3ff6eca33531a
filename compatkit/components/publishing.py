"""From a finished run to manifests: everything a component promises, derived from its module and its run."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import build_pair, check_rebuilt, prove, structural
from compatkit.components.proofs import normalisation_of, probe_of
from compatkit.contracts.contract import (
    Anchor,
    Blueprint,
    Contract,
    Data,
    Kind,
    Protocol,
    Statistical,
    Structural,
)
from compatkit.contracts.manifest import About, Edge, Manifest, Parent, Payload
from compatkit.evaluation.statistics import Moments, feature_moments
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import check_finite
from compatkit.training.fit import Fit
from compatkit.training.state import AuxiliaryHead, TaskState


@attrs.frozen(eq=False)
class Draft:
    """A component that is ready to be stored: all but the payload and the parents.

    Attributes:
        key: Name below the prefix: ``mnist.extractor``, ``shared.dcc``, ``mnist.head``.
        parent: Key of the extractor that a head was trained with; None where that stayed as it was, a component.
        blobs: Bytes that the contract names, to be put before it.
        tags: What it is found by; tags that somebody gives win.
    """

    key: str
    kind: Kind
    title: str
    blueprint: Blueprint
    module: nn.Module
    contract: Contract
    parent: str | None = None
    blobs: tuple[bytes, ...] = ()
    tags: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def parameters(self) -> int:
        """Count of parameters, buffers not included."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def put(self, store: Store) -> Payload:
        """Put the weights, and what else the contract names, into a registry."""
        for blob in self.blobs:
            store.put_blob(blob)
        return store.put_state(self.module.state_dict(), parameters=self.parameters)

    def manifest(
        self, payload: Payload, training: Mapping[str, Any], parents: tuple[Parent, ...], about: About
    ) -> Manifest:
        """Return the manifest once the payload is stored and the parents are known."""
        return Manifest(
            kind=self.kind,
            about=attrs.evolve(about, title=about.title or self.title, tags={**self.tags, **about.tags}),
            blueprint=self.blueprint,
            payload=payload,
            contract=self.contract,
            training=training,
            parents=parents,
        )


def drafts(fit: Fit) -> Iterator[Draft]:
    """Yield extractors, then shared auxiliary heads, then heads; each proved and rebuilt before it is yielded.

    What is as it was is left out: the head of a task without labels, a frozen extractor; and a head that never ran.

    Raises:
        CutError: The parts, rebuilt from their blueprints, do not reproduce the trained network bitwise, or give
            other outputs than they do, or random ones.
        IntegrityError: Weights or features are not finite.
    """
    for draft in _drafts(fit):
        check_rebuilt(draft.key, draft.module, draft.blueprint, draft.contract)
        yield draft


def _drafts(fit: Fit) -> Iterator[Draft]:
    shapes: dict[str, Structural] = {}
    moments: dict[str, tuple[Moments, ...]] = {}
    for state in fit.tasks.values():
        extractor, head = _on_cpu(state.extractor), _on_cpu(state.head)
        _prove(state, extractor, head)
        shapes[state.name] = shape = structural(extractor, state.extractor_blueprint)
        moments[state.name] = seen = feature_moments(
            state.extractor, shape.outputs, state.task.data.train, state.data
        )
        if not state.freezes_extractor:
            yield _extractor(state, extractor, shape, seen)
    for auxiliary in fit.auxiliary.values():
        if auxiliary.origin is None:
            yield _auxiliary(auxiliary, next(iter(fit.tasks.values())), shapes, moments)
    for state in (one for one in fit.tasks.values() if one.runs_head):
        head, seen = _on_cpu(state.head), moments[state.name]
        shape = structural(head, state.head_blueprint, feature_ports=shapes[state.name].outputs)
        yield Draft(
            f"{state.name}.head",
            "head",
            f"{state.head_blueprint.model} after {state.head_blueprint.split}, trained on {state.task.data.name}",
            state.head_blueprint,
            head,
            contract_of(head, state.head_blueprint, shape, state.data, state.anchors, seen),
            parent=None if state.freezes_extractor else f"{state.name}.extractor",
            blobs=blobs_of(seen),
            tags=_tags(state),
        )


def _tags(state: TaskState) -> dict[str, str]:
    return {"backbone": state.head_blueprint.model, "dataset": state.task.data.name}


def _extractor(state: TaskState, module: nn.Module, shape: Structural, seen: tuple[Moments, ...]) -> Draft:
    blueprint, data = state.extractor_blueprint, attrs.evolve(state.data, labels=None)
    return Draft(
        f"{state.name}.extractor",
        "extractor",
        f"{state.task.backbone} up to {state.task.split}, {_learnt(state)} {state.task.data.name}",
        blueprint,
        module,
        contract_of(module, blueprint, shape, data, state.anchors, seen),
        blobs=blobs_of(seen),
        tags={**_tags(state), "backbone": blueprint.model},
    )


def contract_of(
    module: nn.Module,
    blueprint: Blueprint,
    shape: Structural,
    data: Data,
    anchors: Sequence[Anchor] = (),
    moments: Sequence[Moments] = (),
) -> Contract:
    """Return the contract of a part: ports and figures as given, protocol and probe from the module.

    Args:
        module: The part, with its weights, on the CPU.
        blueprint: Says at which image size it was traced.
        shape: Its ports.
        data: Preprocessing and labels.
        anchors: What it was trained against.
        moments: Of its features, one for each feature port; empty where they were not measured.
    """
    protocol = Protocol(normalisation_of(module), tuple(anchors))
    features = tuple(one.statistics() for one in moments) or None
    return Contract(shape, data, protocol, Statistical(features, probe_of(module, shape, blueprint)))


def blobs_of(moments: Sequence[Moments]) -> tuple[bytes, ...]:
    """Return the bytes that the figures of these moments name."""
    return tuple(one.blob for one in moments if one.blob is not None)


def training_facts(
    fit: Fit, run: Edge, state: TaskState | None, head: AuxiliaryHead | None = None
) -> dict[str, Any]:
    """Return the ``training`` part of a manifest; ``state`` is None for what several tasks share, such as ``head``."""
    trainer = fit.run["trainer"]
    names = [state.name] if state is not None else list(fit.tasks)
    data = [dict(task["data"]) for task in fit.run["tasks"] if task["name"] in names]
    return {
        "run": {"blob": run.blob, "bytes": run.bytes},
        "seed": trainer["seed"],
        "steps": trainer["steps"],
        "data": data[0] if len(data) == 1 else data,
        "plugins": list(fit.run["plugins"]),
        "initial": sorted({fit.tasks[name].initial for name in names}),
        "frozen": [frozen["digest"] for frozen in fit.run["frozen"].values()],
        **({"plugin": head.plugin} if head is not None and head.plugin else {}),
        "environment": dict(fit.run["environment"]),
        **{key: fit.run[key] for key in ("stopped", "weights", "pretraining") if key in fit.run},
    }


def _auxiliary(
    head: AuxiliaryHead,
    task: TaskState,
    shapes: Mapping[str, Structural],
    moments: Mapping[str, tuple[Moments, ...]],
) -> Draft:
    """Draft a shared head; it was trained on the features of all tasks, and its figures are of all of them."""
    module = _on_cpu(head.module)
    check_finite(module.state_dict(), f"shared.{head.name}")
    data = attrs.evolve(task.data, labels=head.labels)
    seen = tuple(reduce(Moments.merged, of_port) for of_port in zip(*moments.values(), strict=True))
    shape = structural(module, head.blueprint, feature_ports=shapes[task.name].outputs)
    anchors = [Anchor("auxiliary_head", head.digest, head.name, head.labels)]
    return Draft(
        f"shared.{head.name}",
        "auxiliary_head",
        f"Shared auxiliary head {head.name}",
        head.blueprint,
        module,
        contract_of(module, head.blueprint, shape, data, anchors, seen),
        blobs=blobs_of(seen),
    )


def _prove(state: TaskState, extractor: nn.Module, head: nn.Module) -> None:
    for side, module in (("extractor", extractor), ("head", head)):
        check_finite(module.state_dict(), f"{state.name}.{side}")
    if not _is_one_network(state):
        return
    whole = build_pair(state.extractor_blueprint, state.head_blueprint, seed=0)[0]
    trained: dict[str, Tensor] = {**extractor.state_dict(), **head.state_dict()}
    whole.load_state_dict(trained, strict=True)
    prove(whole, extractor, head, state.data.size, len(state.data.mean))


def _learnt(state: TaskState) -> str:
    return "trained on" if state.supervised else "adapted to"


def _is_one_network(state: TaskState) -> bool:
    """Tell whether both parts are cut from one network; parts that were started from may be of two."""
    return attrs.evolve(state.extractor_blueprint, side="head") == state.head_blueprint


def _on_cpu(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU: publishing leaves the fit as it is."""
    return copy.deepcopy(module).to("cpu", memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
