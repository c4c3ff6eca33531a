"""Components ready to be stored, with contracts derived from modules and training runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import build_pair, check_rebuilt, structural
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.cutting.sideeffects import copied
from compatkit.components.probes import probe_of
from compatkit.components.variational import ROLES, is_vae, vae_parts
from compatkit.components.verification import normalization_of
from compatkit.contracts.contract import Anchor, Blueprint, Contract, Data, Protocol, Statistical, Structural
from compatkit.contracts.kinds import Kind
from compatkit.contracts.manifest import About, Edge, Manifest, Parent, Payload
from compatkit.evaluation.feature_statistics import Moments, feature_moments
from compatkit.foundation.codec import unstructure
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorchecks import NOT_PUBLISHED, check_values
from compatkit.reports.contracts import port_text
from compatkit.training.fit import Fit
from compatkit.training.task_state import AuxiliaryHead, TaskState


@attrs.frozen(eq=False)
class Draft:
    """A component ready to be stored, without payload and parents.

    Attributes:
        kind: Kind of the component.
        blueprint: Blueprint that rebuilds the module.
        module: Module with its weights.
        contract: Contract of the component.
        blobs: Bytes that the contract refers to, to be stored first.
        title: Default title.
        tags: Default tags; those of the caller take precedence.
        key: Name after the prefix of a fit: ``mnist.extractor``, ``shared.dcc``, ``mnist.head``.
        parent: Key of the extractor that a head was trained with; None if that extractor is an unchanged component.
    """

    kind: Kind
    blueprint: Blueprint
    module: nn.Module
    contract: Contract
    blobs: tuple[bytes, ...] = ()
    title: str = attrs.field(kw_only=True, default="")
    tags: Mapping[str, str] = attrs.field(kw_only=True, factory=dict)
    key: str = attrs.field(kw_only=True, default="")
    parent: str | None = attrs.field(kw_only=True, default=None)

    @classmethod
    def of(
        cls,
        kind: Kind,
        blueprint: Blueprint,
        module: nn.Module,
        shape: Structural,
        data: Data,
        anchors: Sequence[Anchor] = (),
        moments: Sequence[Moments] = (),
        frozen_stages: int = 0,
        **attributes: Any,
    ) -> Draft:
        """Return a draft whose protocol and probe are derived from the module.

        Args:
            kind: Kind of the component.
            blueprint: Blueprint with the traced image size.
            module: Module with its weights, on the CPU.
            shape: Ports of the module.
            data: Preprocessing and labels.
            anchors: Parts that it was trained against.
            moments: Moments of the features, one per feature port; empty if not measured.
            frozen_stages: Number of frozen stages of the network.
            attributes: ``title``, ``tags``, ``key`` and ``parent`` of the draft.
        """
        protocol = Protocol(normalization_of(module), tuple(anchors), frozen_stages)
        features = tuple(item.statistics() for item in moments) or None
        statistical = Statistical(features, probe_of(module, shape, blueprint))
        contract = Contract(shape, data, protocol, statistical)
        blobs = tuple(item.blob for item in moments if item.blob is not None)
        return cls(kind, blueprint, module, contract, blobs, **attributes)

    @property
    def parameters(self) -> int:
        """Number of parameters, without buffers."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def describe(self) -> dict[str, str]:
        """Return ports, size and network as text by label."""
        return {
            "takes": "; ".join(port_text(item) for item in self.contract.structural.inputs),
            "gives": "; ".join(port_text(item) for item in self.contract.structural.outputs),
            "parameters": f"{self.parameters:,}",
            "built by": f"{self.blueprint.library}, {self.blueprint.model}, {self.blueprint.approach}",
        }

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, as in a manifest."""
        return {
            "parameters": self.parameters,
            "blueprint": unstructure(self.blueprint),
            "contract": unstructure(self.contract),
        }

    def put(self, store: Store) -> Payload:
        """Store the weights and the blobs that the contract refers to."""
        for blob in self.blobs:
            store.put_blob(blob)
        return store.put_state(self.module.state_dict(), parameters=self.parameters)

    def manifest(
        self, payload: Payload, training: Mapping[str, Any], parents: tuple[Parent, ...], about: About
    ) -> Manifest:
        """Return the manifest, given the stored payload and the parents.

        Args:
            payload: Digest and size of the stored weights.
            training: JSON values on the origin of the weights.
            parents: Components that this one was derived from.
            about: Description; its title and tags take precedence over those of the draft.
        """
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
    """Yield extractors, then auxiliary heads, then heads of a training run; each is rebuilt and verified first.

    A variational autoencoder yields encoder, mean and log-variance layers (an adapter), and decoder.

    Left out are unchanged parts (the head of a task without labels, a frozen extractor) and heads that never ran.

    Raises:
        CutError: Parts rebuilt from their blueprints do not reproduce the trained network bitwise, or give random
            outputs.
        IntegrityError: Weights or features are not finite.
    """
    for draft in _drafts(fit):
        check_rebuilt(draft.key, draft.module, draft.blueprint, draft.contract)
        yield draft


def _drafts(fit: Fit) -> Iterator[Draft]:
    shapes: dict[str, Structural] = {}
    moments: dict[str, tuple[Moments, ...]] = {}
    heads: dict[str, nn.Module] = {}
    for state in fit.tasks.values():
        if is_vae(state):
            yield from _of_vae(state)
            continue
        extractor, head = _on_cpu(state.extractor), _on_cpu(state.head)
        heads[state.name] = head
        _prove(state, extractor, head)
        shapes[state.name] = shape = structural(extractor, state.extractor_blueprint)
        moments[state.name] = measured = feature_moments(
            state.extractor, shape.outputs, state.task.data.train, state.data
        )
        if not state.freezes_extractor:
            trained = "trained on" if state.supervised else "adapted to"
            yield Draft.of(
                "extractor",
                state.extractor_blueprint,
                extractor,
                shape,
                attrs.evolve(state.data, labels=None),
                state.anchors,
                measured,
                state.task.freeze_stages,
                title=f"{state.task.model} up to {state.task.cut}, {trained} {state.task.data.name}",
                tags=_tags(state, state.extractor_blueprint),
                key=f"{state.name}.extractor",
            )
    for auxiliary in fit.auxiliary.values():
        if auxiliary.origin is None:
            yield _auxiliary(auxiliary, next(iter(fit.tasks.values())), shapes, moments)
    for state in filter(lambda task: task.runs_head, fit.tasks.values()):
        head = heads[state.name]
        shape = structural(head, state.head_blueprint, feature_ports=shapes[state.name].outputs)
        yield Draft.of(
            "head",
            state.head_blueprint,
            head,
            shape,
            state.data,
            state.anchors,
            moments[state.name],
            state.task.freeze_stages,
            title=f"{state.head_blueprint.model} after {state.head_blueprint.cut}, trained on "
            f"{state.task.data.name}",
            tags=_tags(state, state.head_blueprint),
            key=f"{state.name}.head",
            parent=None if state.freezes_extractor else f"{state.name}.extractor",
        )


def _of_vae(state: TaskState) -> Iterator[Draft]:
    """Yield encoder, mean and log-variance layers, and decoder of a variational autoencoder."""
    trained = _on_cpu(state.extractor).state_dict()
    check_values(trained, f"{state.name}.extractor", NOT_PUBLISHED)
    for part in vae_parts(state, trained):
        yield Draft.of(
            part.kind,
            part.blueprint,
            part.module,
            part.shape,
            part.data,
            state.anchors,
            part.moments,
            title=f"{state.task.model}, {ROLES[part.role]}, trained on {state.task.data.name}",
            tags=_tags(state, state.extractor_blueprint) | {"role": part.role},
            key=f"{state.name}.{part.role}",
            parent=None if part.role == "encoder" else f"{state.name}.encoder",
        )


def _tags(state: TaskState, blueprint: Blueprint) -> dict[str, str]:
    return {"backbone": blueprint.model, "dataset": state.task.data.name}


def training_record(
    fit: Fit, run: Edge, state: TaskState | None, head: AuxiliaryHead | None = None
) -> dict[str, Any]:
    """Return the ``training`` part of a manifest.

    Args:
        fit: Training run.
        run: Blob of the run's manifest.
        state: Task of the part; None for a part of several tasks.
        head: Auxiliary head, if the part is one.
    """
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
        **{
            key: fit.run[key]
            for key in ("stopped", "weights", "pretraining", "augment_changes")
            if key in fit.run
        },
    }


def _auxiliary(
    head: AuxiliaryHead,
    task: TaskState,
    shapes: Mapping[str, Structural],
    moments: Mapping[str, tuple[Moments, ...]],
) -> Draft:
    """Return the draft of an auxiliary head, with statistics over the features of all tasks."""
    module = _on_cpu(head.module)
    check_values(module.state_dict(), f"shared.{head.name}", NOT_PUBLISHED)
    data = attrs.evolve(task.data, labels=head.labels)
    merged = tuple(reduce(Moments.merged, of_port) for of_port in zip(*moments.values(), strict=True))
    shape = structural(module, head.blueprint, feature_ports=shapes[task.name].outputs)
    anchors = [Anchor("auxiliary_head", head.digest, head.name, head.labels)]
    return Draft.of(
        "auxiliary_head",
        head.blueprint,
        module,
        shape,
        data,
        anchors,
        merged,
        title=f"Shared auxiliary head {head.name}",
        key=f"shared.{head.name}",
    )


def _prove(state: TaskState, extractor: nn.Module, head: nn.Module) -> None:
    for side, module in (("extractor", extractor), ("head", head)):
        check_values(module.state_dict(), f"{state.name}.{side}", NOT_PUBLISHED)
    if attrs.evolve(state.extractor_blueprint, side="head") != state.head_blueprint:
        return  # initial parts may come from two networks
    network = build_pair(state.extractor_blueprint, state.head_blueprint, seed=0)[0]
    trained: dict[str, Tensor] = {**extractor.state_dict(), **head.state_dict()}
    network.load_state_dict(trained, strict=True)
    prove(network, extractor, head, state.data.size, len(state.data.mean))


def _on_cpu(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, in eval mode."""
    return copied(module).to("cpu", memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
