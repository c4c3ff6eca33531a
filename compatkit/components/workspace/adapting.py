"""Training that starts from components: further on their own task, on another, or without labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.loading import load, pinned
from compatkit.components.workspace.measuring import Measuring
from compatkit.contracts.manifest import About
from compatkit.errors import IncompatibleError, UsageError
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.components.domains import Adapted
    from compatkit.components.promises import Given, Progress
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.matrix import LoadedPart
    from compatkit.plugins import Use
    from compatkit.training.prepare import Statistics
    from compatkit.training.task import Rest, Task
    from compatkit.training.trainer import Trainer


class Adapting(Measuring):
    """Tasks that start from components."""

    def task(
        self,
        name: str,
        data: DataSet | Split,
        *,
        extractor: str,
        head: str | None = None,
        supervised: bool = True,
        augment: Sequence[str] = (),
        rest: Rest | Mapping[str, Any] | None = None,
        own_head: bool = True,
        freeze_extractor: bool = False,
    ) -> Task:
        """Return a task whose network starts from components, for ``Trainer.fit``.

        Weights and running statistics are theirs, bit for bit; images are prepared as the extractor's contract says.
        What is published of such a fit names them as ``initialised_from``.

        Args:
            name: Used in component names.
            data: Training and test images; a ``Split`` where ``supervised`` is False.
            extractor: Reference of an extractor.
            head: Reference of a head, or of a shared head that tells classes apart; its classes, matched by name, must
                be all that ``data`` has, whose labels are brought into its order. None draws a head of the extractor's
                own network for the classes of ``data``.
            supervised: Whether the head learns the classes; else no label is read, the head stays as it is, and the
                extractor learns from regularizers alone.
            augment: Any of ``"crop"`` and ``"flip"``.
            rest: Where a head is drawn: it is the rest of this network; see ``Task``.
            own_head: Whether it has a head of its own; see ``Task``.
            freeze_extractor: The extractor stays as it is, and is not published again: its component is what the head
                was trained with.

        Raises:
            NotFound: Nothing has that name or version.
            IncompatibleError: The two cannot be wired as they are; carries the report.
            UsageError: A reference is of another kind, or ``data`` has classes that the head does not know.
            DataError: Classes of the data mean the same.
        """
        from compatkit.training.task import Task

        left = self._part(extractor, "extractor")
        right = None if head is None else self._head(head)
        if right is not None:
            report = self.check(left.reference, right.reference)
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
            blueprint.split,
            builder=blueprint.builder,
            kwargs=blueprint.kwargs,
            size=left.manifest.contract.data.size,
            augment=tuple(augment),
            extractor=left,
            head=right,
            supervised=supervised,
            rest=rest,
            own_head=own_head,
            freeze_extractor=freeze_extractor,
        )

    def adapt(
        self,
        extractor: str,
        head: str,
        auxiliary: str,
        data: Split,
        *,
        trainer: Trainer | None = None,
        method: str | Use | None = None,
        frozen_statistics: Statistics = "stored",
        test: Split | None = None,
        augment: Sequence[str] = (),
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Adapted:
        """Move an extractor to images without labels: the loss of a frozen shared head trains it, and nothing else.

        Args:
            extractor: Reference of the source's extractor.
            head: Reference of the source's head; it is not changed, and need not be published again.
            auxiliary: Reference of a self-supervised shared head that the extractor was trained with.
            data: Images of the target; labels that it has are not read.
            trainer: None takes the paper's settings: ``compatkit.components.domains.paper()``.
            method: The regularizer whose head it is, where the head's manifest does not say so.
            frozen_statistics: Batch normalisation inside the shared head: ``"stored"`` or ``"batch"``.
            test: Labelled images of the target, to measure on.
            augment: Any of ``"crop"`` and ``"flip"``.
            factories: Regularizers that are not installed, by name: for notebooks.

        Raises:
            NotFound: Nothing has that name or version.
            IncompatibleError: The head does not go on the extractor as it is; carries the report.
            UsageError: The extractor was not trained against that shared head; a reference is of another kind; the
                method cannot do without labels.
            DataError: There are fewer images than in a batch.
            TrainingError: A loss is not finite, or the checkpoint belongs to another plan.
        """
        from compatkit.components import domains

        task = self.task(
            domains.TASK, data, extractor=extractor, head=head, supervised=False, augment=augment
        )
        left, right = self._parts_of(task)
        domains.check_source(self.check(left.reference, right.reference))
        whose = self._part(auxiliary, "auxiliary_head")
        shared = next(iter(self.auxiliary_heads(whose.reference).values()))
        domains.check_anchor(left, shared, whose.reference)
        use = domains.method_of(whose.manifest, whose.reference, method)
        chosen = domains.paper() if trainer is None else trainer
        return domains.adapt(
            task, shared, use, chosen, statistics=frozen_statistics, test=test, factories=factories
        )

    def publish_adapted(
        self,
        name: str,
        adapted: Adapted,
        *,
        version: str | None = None,
        major: bool = False,
        about: About | None = None,
        data: Given = (),
        progress: Progress | None = None,
    ) -> str:
        """Keep an adapted extractor as a component; its head is the source's, as it was.

        Arguments beside the first two, and errors, are those of ``publish``.

        Args:
            name: Such as ``"digits/usps-adapted.extractor"``.
            adapted: From ``adapt``.
            version: See ``publish``.
            major: See ``publish``.
            about: See ``publish``.
            data: See ``publish``.
            progress: See ``publish``.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            IntegrityError: A component that it came from is not in this registry.
        """
        from compatkit.components.releasing import Release

        check_name(name)
        release = Release.of(
            self.store,
            adapted.fit,
            lambda key: name,
            about=about,
            version=version,
            major=major,
            data=data,
            progress=progress,
        )
        (reference,) = release.publish().values()
        return pinned(reference)

    def _part(self, reference: str, kind: str) -> LoadedPart:
        """Return one component, of the kind that is expected."""
        (found,) = self.select(str(self.store.resolve(reference)), kind)
        return load(self.store, found)

    def _head(self, reference: str) -> LoadedPart:
        """Return a head, or a shared head."""
        shared = self.store.manifest(self.store.resolve(reference)).kind == "auxiliary_head"
        return self._part(reference, "auxiliary_head" if shared else "head")

    def _parts_of(self, task: Task) -> tuple[LoadedPart, LoadedPart]:
        if task.extractor is None or task.head is None:
            raise UsageError(f"Task {task.name!r} starts from no components.")
        return task.extractor, task.head


def _with_test(data: DataSet | Split, supervised: bool) -> DataSet:
    """Return a data set; of images alone, where no test images are needed, one that has them twice."""
    from compatkit.data.dataset import DataSet, Split

    if isinstance(data, DataSet):
        return data
    if not isinstance(data, Split):
        raise UsageError(f"data expects a DataSet, or a Split of images; got {type(data).__name__}.")
    if supervised:
        raise UsageError(
            f"A task that learns classes needs training and test images: a DataSet, not the Split {data.name!r}."
        )
    return DataSet(data.name.rsplit("/", 1)[0], data, data)


def _in_order(data: DataSet, head: LoadedPart) -> DataSet:
    """Return a data set whose classes are those of a head, by name and place.

    Raises:
        UsageError: The head does not know a class.
    """
    import numpy as np

    from compatkit.contracts.labels import common
    from compatkit.data.dataset import DataSet

    known = head.manifest.contract.data.labels or ()
    pairs = common(data.classes, known, whose=(f"the classes of {data.name}", head.reference))
    if len(pairs) < len(data.classes):
        found = {mine for mine, _ in pairs}
        missing = [one for place, one in enumerate(data.classes) if place not in found]
        raise UsageError(
            f"{head.reference} tells apart {', '.join(one.name for one in known) or 'classes without names'}; the "
            f"images of {data.name} are also of {', '.join(missing)}. Leave the head out, and one is drawn for these "
            "classes, or leave out the images.",
            subject=head.reference,
        )
    names = tuple(one.name for one in known)
    if names == data.classes:
        return data
    places = np.array([theirs for _, theirs in sorted(pairs)], dtype=np.int64)
    splits = [attrs.evolve(one, labels=places[one.labels], classes=names) for one in (data.train, data.test)]
    return DataSet(data.name, *splits)
