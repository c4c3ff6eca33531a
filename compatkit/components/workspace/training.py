"""Training that starts from components: tasks, what a run is held to, other domains, bridges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.components.loading import load
from compatkit.components.workspace.building import Building
from compatkit.errors import IncompatibleError, UsageError

if TYPE_CHECKING:
    from compatkit.components.bridges.climbing import Progress
    from compatkit.components.bridges.results import Bridge
    from compatkit.components.domains import Adapted
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.matrix import LoadedPart
    from compatkit.plugins import Use
    from compatkit.training.prepare import Statistics
    from compatkit.training.state import AuxiliaryHead, ReleasedExtractor
    from compatkit.training.task import Rest, Task
    from compatkit.training.trainer import Trainer


class Training(Building):
    """Tasks and runs that start from components."""

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
        shared = _frozen_head(whose, whose.reference.split("@")[0].rsplit(".", 1)[-1])
        domains.check_anchor(left, shared, whose.reference)
        use = domains.method_of(whose.manifest, whose.reference, method)
        chosen = domains.paper() if trainer is None else trainer
        return domains.adapt(
            task, shared, use, chosen, statistics=frozen_statistics, test=test, factories=factories
        )

    def bridge(
        self,
        extractor: str,
        head: str,
        data: Split,
        *,
        labels: Split | None = None,
        test: Split | None = None,
        head_data: Split | None = None,
        rungs: Sequence[str] | None = None,
        until: float | None = 0.8,
        images: int = 1000,
        on: Literal["src", "dst", "mix"] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Bridge:
        """Bring a head to an extractor that it was not trained with, from the cheapest way to the dearest.

        Every rung is judged by its agreement: on how many held-out images it says what the head's own network says,
        whose statistics of batch normalisation are estimated on images of this domain too. What chance gives is taken
        off (Cohen's kappa). No label is needed. Behind each rung the head's statistics are estimated anew.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head; the extractor that it was trained with must be in this registry.
            data: Images of the extractor's domain, whose labels are not read; up to 500, or half of them, are held out.
            labels: Labelled images of that domain, for the rungs that are trained with labels. One of five is not
                trained on, nor are those held out of ``data``: by these such a rung is chosen, and judged.
            test: Labelled images to measure accuracy on; nothing is chosen by them.
            head_data: Images of the head's domain, to pair features on; labels are not read.
            rungs: Of ``compatkit.components.bridges.rungs.RUNGS``; None takes all but ``"infomax"``, and those that
                need labels only where there are some.
            until: Agreement from which no further rung is climbed, if the bridge also fits; None climbs all.
            images: How many to fit on at most.
            on: Where features are paired: ``"src"``, on ``data``; ``"dst"``, on ``head_data``; ``"mix"``, on both.
                None takes ``"dst"`` where ``head_data`` is given.
            seed: Of orders and draws.
            progress: Called with rungs done, rungs in all, and the rung's name.

        Raises:
            IncompatibleError: The parts cannot be wired, the head's own extractor is not here, or no rung could be
                climbed; says why.
            DataError: Too few images, features that are not finite or do not change, no class in common.
            UsageError: A setting is not usable as given.
        """
        from compatkit.components.bridges.assembling import Wish, bridge

        wish = Wish(
            data=data,
            labels=labels,
            test=test,
            head_data=head_data,
            rungs=rungs,
            until=until,
            images=images,
            on=on if on is not None else "src" if head_data is None else "dst",
            seed=seed,
            progress=progress,
        )
        report = self.check(extractor, head)
        if report.wiring == "refused":
            raise IncompatibleError(str(report), subject=report)
        left, right = (load(self.store, self.store.resolve(one)) for one in (extractor, head))
        return bridge(self.store, left, right, report, wish)

    def frozen(
        self,
        heads: str | Sequence[str] = (),
        *,
        head: str | None = None,
        extractor: str | None = None,
    ) -> dict[str, AuxiliaryHead | ReleasedExtractor]:
        """Return everything that a run is trained against: ``Trainer.fit(..., frozen=...)``.

        Args:
            heads: Shared auxiliary heads to train new parts against: pattern, or patterns.
            head: Reference of a released target head to stay compatible with, for ``backward_compatibility``.
            extractor: Reference of a released extractor, for its forward term and for ``feature_distillation``.

        Raises:
            NotFound: Nothing has that name or version; a pattern matches nothing.
            UsageError: A reference or match is of another kind, or the classes of ``head`` have no names.
            IntegrityError: A part is damaged.
        """
        from compatkit.training.state import EXTRACTOR, HEAD, ReleasedExtractor

        found: dict[str, AuxiliaryHead | ReleasedExtractor] = {}
        for part in self._parts(heads, "auxiliary_head") if heads else ():
            name = part.reference.split("@")[0].rsplit(".", 1)[-1]
            if name in found:
                raise UsageError(
                    f"{', '.join([heads] if isinstance(heads, str) else heads)} means several heads {name!r}, "
                    f"{part.reference} among them; a run takes one. Narrow the pattern."
                )
            found[name] = _frozen_head(part, name)
        if head is not None:
            part = self._part(head, "head")
            if not part.manifest.contract.data.labels:
                raise UsageError(
                    f"{part.reference} does not say what its outputs mean, so that no image is known to be of one of "
                    "its classes. Publish it with labels (compatkit split --labels).",
                    subject=part.reference,
                )
            found[HEAD] = _frozen_head(part, HEAD)
        if extractor is not None:
            part = self._part(extractor, "extractor")
            found[EXTRACTOR] = ReleasedExtractor(
                part.manifest.blueprint,
                part.module,
                part.manifest.contract.data,
                part.manifest.payload.tensors,
                part.reference,
            )
        return found

    def _part(self, reference: str, kind: str) -> LoadedPart:
        """Return one component, of the kind that is expected."""
        (part,) = self._parts(str(self.store.resolve(reference)), kind)
        return part

    def _parts(self, patterns: str | Sequence[str], kind: str) -> list[LoadedPart]:
        """Return what patterns mean, all of one kind."""
        return [load(self.store, one) for one in self.store.select(patterns, kind)]

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


def _frozen_head(part: LoadedPart, name: str) -> AuxiliaryHead:
    from compatkit.training.networks import parameters_digest
    from compatkit.training.state import AuxiliaryHead

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
