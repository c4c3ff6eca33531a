"""Make tasks, auxiliary heads and released parts for training from components of a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from compatkit.components.loading import load
from compatkit.components.pairs import check_pair
from compatkit.contracts.labels import common
from compatkit.data.dataset import DataSet, Split
from compatkit.errors import IncompatibleError, UsageError
from compatkit.evaluation.component import Component
from compatkit.registry.store import Store
from compatkit.training.networks import parameters_digest
from compatkit.training.state import EXTRACTOR, HEAD, AuxiliaryHead, ReleasedExtractor
from compatkit.training.task import Augment, Rest, Task


def part(store: Store, reference: str, kind: str) -> Component:
    """Return one component of the expected kind, with its module.

    Args:
        store: The registry's files.
        reference: One component.
        kind: ``"extractor"``, ``"head"``, ``"auxiliary_head"``, ...

    Raises:
        UsageError: It has another kind.
    """
    (component,) = parts(store, str(store.resolve(reference)), kind)
    return component


def parts(store: Store, patterns: str | Sequence[str], kind: str) -> list[Component]:
    """Return the components that patterns match, with their modules, all of one kind.

    Args:
        store: The registry's files.
        patterns: References or patterns.
        kind: ``"extractor"``, ``"head"``, ``"auxiliary_head"``, ...

    Raises:
        UsageError: A match has another kind.
    """
    return [load(store, reference) for reference in store.select(patterns, kind)]


def task_of(
    store: Store,
    name: str,
    data: DataSet | Split,
    extractor: str,
    head: str | None,
    *,
    supervised: bool = True,
    augment: Augment = (),
    rest: Rest | Mapping[str, Any] | None = None,
    own_head: bool = True,
    freeze_extractor: bool = False,
    freeze_stages: int = 0,
    recompute_activations: bool = False,
) -> Task:
    """Return a task whose network starts from components; see ``Registry.task``."""
    left, right = part(store, extractor, "extractor"), None
    if head is not None:
        shared = store.manifest(store.resolve(head)).kind == "auxiliary_head"
        right = part(store, head, "auxiliary_head" if shared else "head")
        report = check_pair(store, left, right)
        if report.wiring != "direct":
            raise IncompatibleError(str(report), subject=report)
    shown = _with_test(data, supervised)
    if right is not None and supervised:
        shown = _in_order(shown, right)
    blueprint = left.manifest.blueprint
    return Task(
        name,
        shown,
        blueprint.model,
        blueprint.cut,
        builder=blueprint.builder,
        kwargs=blueprint.kwargs,
        size=left.manifest.contract.data.size,
        augment=augment,
        extractor=left,
        head=right,
        supervised=supervised,
        rest=rest,
        own_head=own_head,
        freeze_extractor=freeze_extractor,
        freeze_stages=freeze_stages,
        recompute_activations=recompute_activations,
    )


def frozen_parts(
    store: Store, heads: str | Sequence[str], head: str | None, extractor: str | None
) -> dict[str, AuxiliaryHead | ReleasedExtractor]:
    """Return the released parts that a run is trained against; see ``Registry.frozen``."""
    frozen: dict[str, AuxiliaryHead | ReleasedExtractor] = {}
    for shared in parts(store, heads, "auxiliary_head") if heads else ():
        name = shared.name.rsplit(".", 1)[-1]
        if name in frozen:
            raise UsageError(
                f"{', '.join([heads] if isinstance(heads, str) else heads)} matches several heads {name!r}, among them "
                f"{shared.reference}; a run takes one. Narrow the pattern."
            )
        frozen[name] = frozen_head(shared, name)
    if head is not None:
        target = part(store, head, "head")
        if not target.labels:
            raise UsageError(
                f"The outputs of {target.reference} have no class names, so no image is known to belong to one of its "
                "classes. Publish it with labels (compatkit split --labels).",
                subject=target.reference,
            )
        frozen[HEAD] = frozen_head(target, HEAD)
    if extractor is not None:
        released = part(store, extractor, "extractor")
        manifest = released.manifest
        frozen[EXTRACTOR] = ReleasedExtractor(
            manifest.blueprint,
            released.module,
            manifest.contract.data,
            manifest.payload.tensors,
            released.reference,
        )
    return frozen


def _with_test(data: DataSet | Split, supervised: bool) -> DataSet:
    """Return a data set; one of images alone, if no test images are needed, uses them as both splits."""
    if isinstance(data, DataSet):
        return data
    if not isinstance(data, Split):
        raise UsageError(f"data expects a DataSet, or a Split of images; got {type(data).__name__}.")
    if supervised:
        raise UsageError(
            f"A task that learns classes needs training and test images: a DataSet, not the Split {data.name!r}."
        )
    return DataSet(data.name.rsplit("/", 1)[0], data, data)


def _in_order(data: DataSet, head: Component) -> DataSet:
    """Return a data set with the classes of a head, in its order.

    Raises:
        UsageError: The head does not know a class.
    """
    known = head.labels
    pairs = common(data.classes, known, owners=(f"the classes of {data.name}", head.reference))
    if len(pairs) < len(data.classes):
        known_classes = {mine for mine, _ in pairs}
        missing = [item for place, item in enumerate(data.classes) if place not in known_classes]
        raise UsageError(
            f"{head.reference} knows {', '.join(item.name for item in known) or 'classes without names'}; the images "
            f"of {data.name} are also of {', '.join(missing)}. Leave the head out to create one for these classes, or "
            "leave out the images.",
            subject=head.reference,
        )
    names = tuple(item.name for item in known)
    if names == data.classes:
        return data
    places = np.array([theirs for _, theirs in sorted(pairs)], dtype=np.int64)
    splits = [
        attrs.evolve(item, labels=places[item.labels], classes=names) for item in (data.train, data.test)
    ]
    return DataSet(data.name, *splits)


def frozen_head(part: Component, name: str) -> AuxiliaryHead:
    """Return a released head for training against, under a name of the run.

    Args:
        part: A head or an auxiliary head, with its module.
        name: That plugins ask for.
    """
    return AuxiliaryHead(
        name,
        part.manifest.blueprint,
        part.module,
        part.manifest.contract.data.labels,
        frozen=True,
        digest=parameters_digest(part.module)
        if part.kind == "auxiliary_head"
        else part.manifest.payload.tensors,
        origin=part.digest,
        initials=tuple(part.manifest.training.get("initial", ())),
    )
