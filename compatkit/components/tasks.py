"""Components of a registry as parts of training: extractors, heads, and frozen auxiliary heads."""

from __future__ import annotations

import attrs
import numpy as np

from compatkit.components.loading import load
from compatkit.contracts.labels import common
from compatkit.data.dataset import DataSet, Split
from compatkit.errors import UsageError
from compatkit.evaluation.component import Component
from compatkit.registry.store import Store
from compatkit.training.networks import parameters_digest
from compatkit.training.task_state import AuxiliaryHead


def part_of(store: Store, reference: str, kind: str) -> Component:
    """Return one component of the expected kind, with its module.

    Args:
        store: Store of the registry.
        reference: Reference of the component.
        kind: ``"extractor"``, ``"head"``, ``"auxiliary_head"``, ...

    Raises:
        UsageError: The component has another kind.
    """
    (resolved,) = store.select(str(store.resolve(reference)), kind)
    return load(store, resolved)


def with_test(data: DataSet | Split, supervised: bool) -> DataSet:
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


def in_order(data: DataSet, head: Component) -> DataSet:
    """Return a data set with the classes of a head, in its order.

    Raises:
        UsageError: The head does not know a class.
    """
    known = head.labels
    pairs = common(data.classes, known, owners=(f"the classes of {data.name}", head.reference))
    if len(pairs) < len(data.classes):
        known_classes = {mine for mine, _ in pairs}
        missing = [name for index, name in enumerate(data.classes) if index not in known_classes]
        raise UsageError(
            f"{head.reference} knows {', '.join(item.name for item in known) or 'classes without names'}; the images "
            f"of {data.name} are also of {', '.join(missing)}. Leave the head out to create one for these classes, or "
            "leave out the images.",
            subject=head.reference,
        )
    names = tuple(item.name for item in known)
    if names == data.classes:
        return data
    outputs = np.array([theirs for _, theirs in sorted(pairs)], dtype=np.int64)
    splits = [
        attrs.evolve(item, labels=outputs[item.labels], classes=names) for item in (data.train, data.test)
    ]
    return DataSet(data.name, *splits)


def frozen_head(part: Component, name: str) -> AuxiliaryHead:
    """Return a released head for training against, under a name of the run.

    Args:
        part: Head or auxiliary head, with its module.
        name: Name in the run, by which plugins find it.
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
