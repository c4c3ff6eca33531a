"""Hook specifications: what a plugin can do, when, and with which arguments.

There are two separate layers. **Registration hooks** are called once, when a run looks up a plugin by name. **Training
hooks** are methods of the object that a regularizer's factory returns; a fit resolves them once into plain tuples, so
pluggy is never called inside a step.

Arguments of training hooks are declared as Protocols, so that this module need not import the classes that implement
them: ``compatkit.Step``, ``compatkit.SetUp``, ``compatkit.TaskState`` and ``compatkit.Pretraining``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

import attrs
import pluggy

from compatkit.errors import UsageError
from compatkit.foundation.limits import WHOLE, Number, OneOf

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from compatkit.contracts.contract import Blueprint, Data, Label

PROJECT = "compatkit"
HOOK_API = 1
"""Version of the signatures below; a plugin module may state ``compatkit_api = 1``."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Effect = Literal["pure", "device", "host"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
Function = TypeVar("Function", bound=Callable[..., Any])
Defined = TypeVar("Defined")
"""A ``compatkit.Task``."""


@attrs.frozen
class Phase:
    """Range of a task's steps in which a plugin is active: ``start <= step < stop``; ``stop=None`` is open-ended."""

    start: int = attrs.field(default=0, validator=WHOLE)
    stop: int | None = attrs.field(default=None, validator=Number(least=0, whole=True, optional=True))

    def __attrs_post_init__(self) -> None:
        if self.stop is not None and self.stop <= self.start:
            raise UsageError(f"stop must be greater than start; got start={self.start}, stop={self.stop}.")

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.start <= step and (self.stop is None or step < self.stop)


def effect(kind: Effect) -> Callable[[Function], Function]:
    """Declare the side effects of a training hook.

    ``pure``: tensors in, tensors out, no host synchronization; may be compiled. A pure view draws random numbers only
    from ``step.rng``, so torch's global generators need not be seeded for it. ``device``: changes device buffers in
    place; may be captured, not compiled. ``host`` (the default): Python side effects; keeps the run eager.

    Raises:
        UsageError: ``kind`` is not one of these.
    """
    OneOf(EFFECTS).check("effect", kind=kind)

    def mark(function: Function) -> Function:
        function.compatkit_effect = kind  # type: ignore[attr-defined]
        return function

    return mark


def autocast(function: Function) -> Function:
    """Let ``compatkit_losses`` run in the precision of the run's forward passes: bf16 where the trainer has it.

    Without it the hook runs in float32: ``step.features``, ``logits``, ``views`` and ``layers`` are cast up, and
    networks that it calls run in float32 too. Mark a hook that calls heads or extractors, where bf16 saves time, and
    compute its loss from ``logits.float()``.
    """
    function.compatkit_autocast = True  # type: ignore[attr-defined]
    return function


@attrs.frozen(eq=False)
class Batch:
    """One mini-batch.

    Attributes:
        images: Normalized, ``(batch, channels, height, width)``.
        labels: Class indices of the task, ``(batch,)``; all -1 where the task has none.
        index: Indices in the training set, ``(batch,)``; for images of a loader, positions in the current pass over it.
        stacked: ``images`` followed by the further views of all of them, ``(views * batch, ...)``; ``images`` is its
            beginning. None without further views, or once the images have been changed.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    stacked: Tensor | None = None

    def copied(self) -> Batch:
        """Return a deep copy."""
        labels, index = self.labels.clone(), self.index.clone()
        if self.stacked is None:
            return Batch(self.images.clone(), labels, index)
        stacked = self.stacked.clone()
        return Batch(stacked[: len(labels)], labels, index, stacked)

    def take(self, other: Batch) -> None:
        """Copy the values of ``other``, a batch of the same shapes, into this batch's memory."""
        self.labels.copy_(other.labels, non_blocking=True)
        self.index.copy_(other.index, non_blocking=True)
        if self.stacked is None:
            self.images.copy_(other.images, non_blocking=True)
        elif other.stacked is not None:
            self.stacked.copy_(other.stacked, non_blocking=True)


class TaskLike(Protocol):
    """A task during a run, as hooks see it: ``compatkit.TaskState``."""

    extractor: nn.Module
    head: nn.Module
    extractor_blueprint: Blueprint
    head_blueprint: Blueprint
    class_layer: tuple[str, ...]
    data: Data
    feature_shape: tuple[int, ...]

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> tuple[Label, ...]: ...
    @property
    def supervised(self) -> bool: ...
    @property
    def runs_head(self) -> bool: ...
    @property
    def freezes_extractor(self) -> bool: ...
    def extract(self, images: Tensor, *, write_statistics: bool = True) -> Tensor: ...
    def stages(self, wanted: str) -> Mapping[str, int]: ...


class StepLike(Protocol):
    """One step of one task, as hooks see it: ``compatkit.Step``."""

    number: int
    piece: int
    batch: Batch
    features: Tensor
    logits: Tensor | None
    reports: bool
    views: Sequence[Tensor]

    @property
    def task(self) -> TaskLike: ...
    @property
    def layers(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def losses(self) -> Mapping[str, Tensor]: ...
    def extract(self, images: Tensor, *, write_statistics: bool) -> Tensor: ...
    def classify(self, features: Tensor) -> Tensor: ...
    def rng(self, *key: str | int) -> torch.Generator: ...


class SetUpLike(Protocol):
    """The set-up of a run, as hooks see it: ``compatkit.SetUp``."""

    @property
    def tasks(self) -> Mapping[str, TaskLike]: ...
    @property
    def auxiliary(self) -> Mapping[str, Callable[[Tensor], Tensor]]: ...
    def rng(self, *key: str | int) -> torch.Generator: ...
    def own(self, name: str, module: nn.Module) -> nn.Module: ...
    def build(self, blueprint: Blueprint, *key: str | int) -> nn.Module: ...
    def initialize(
        self, task: Any, *stream: str | int, seed: int | None = None, class_layer: bool = True
    ) -> None: ...
    def record_layers(self, task: Any, names: Iterable[str]) -> None: ...
    def tell(self, facts: Mapping[str, Any]) -> None: ...
    def compare_gradients(self, *, balance: bool = False) -> None: ...
    def shared_classes(self) -> tuple[Label, ...]: ...
    def add_auxiliary_head(
        self,
        name: str,
        *,
        classes: Sequence[Label] | None = None,
        outputs: int | None = None,
        like: str | None = None,
    ) -> Callable[[Tensor], Tensor]: ...
    def released_head(self) -> Callable[[Tensor], Tensor]: ...
    def released_extractor(self, task: Any) -> Callable[[Tensor], Tensor]: ...


class PretrainingLike(Protocol):
    """Batches and progress bars for training before the first step: ``compatkit.Pretraining``."""

    def batches(self, task: Any, *key: str | int, steps: int, batch_size: int) -> Iterator[Batch]: ...
    def bar(self, title: str, steps: int, batch_size: int) -> Any: ...


class LoggerLike(Protocol):
    """Writes figures of a run as they come; only one process of a run calls its logger."""

    def begin(self, step: int) -> None:
        """Open what is written to, for a run of which ``step`` steps are done, and drop later figures.

        A run that was killed may have logged steps after its last checkpoint; the resumed run takes them again.
        """
        ...

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write figures such as ``<task>/losses/<name>`` or ``<task>/accuracy``, after ``step`` steps of each task."""
        ...

    def flush(self) -> None:
        """Write everything to disk: a checkpoint is saved, and these figures are not logged again."""
        ...

    def close(self) -> None:
        """Close what ``begin`` opened."""
        ...


class Register:
    """Callback passed to registration hooks: ``register(name, factory)``."""

    def __call__(self, name: str, factory: Callable[..., Any]) -> None:
        """Offer ``factory`` under the name that runs use; settings are its keyword arguments."""
        raise NotImplementedError


class Registration:
    """Registration hooks, by which a package offers plugins. Each receives ``register`` and returns None."""

    @hookspec
    def compatkit_regularizers(self, register: Register) -> None:
        """Offer regularizers: factories of objects that implement the training hooks.

        Example::

            @compatkit.hookimpl
            def compatkit_regularizers(register):
                register("feature_norm", FeatureNorm)
        """

    @hookspec
    def compatkit_metrics(self, register: Register) -> None:
        """Offer metrics: factories of objects with ``init``, ``update``, ``merge`` and ``finalize``.

        Example::

            @compatkit.hookimpl
            def compatkit_metrics(register):
                register("confidence", Confidence)
        """

    @hookspec
    def compatkit_builders(self, register: Register) -> None:
        """Offer builders of networks: ``factory(model, **kwargs) -> torch.nn.Module``.

        The same name and keyword arguments (JSON values) must give the same modules in every process, with weights
        drawn from torch alone. A factory must not read files: both may come from an untrusted manifest.

        Example::

            @compatkit.hookimpl
            def compatkit_builders(register):
                register("mynets", build)
        """

    @hookspec
    def compatkit_data_sets(self, register: Register) -> None:
        """Offer data sets: ``factory(root=None, download=False) -> compatkit.data.DataSet``.

        Example::

            @compatkit.hookimpl
            def compatkit_data_sets(register):
                register("my-digits", load)
        """

    @hookspec
    def compatkit_loaders(self, register: Register) -> None:
        """Offer loaders: ``factory(split, data, batch_size) -> torch.utils.data.DataLoader``, or the like.

        ``split`` are the training images of the task's data set, without those held out; ``data`` says size, channels,
        mean, standard deviation and classes. Further arguments are settings: ``loader = {name = "mine", workers = 4}``.

        Example::

            @compatkit.hookimpl
            def compatkit_loaders(register):
                register("mine", lambda split, data, batch_size: DataLoader(Mine(split, data), batch_size))
        """

    @hookspec
    def compatkit_loggers(self, register: Register) -> None:
        """Offer loggers of a run: ``factory(folder) -> LoggerLike``, which writes nothing before ``begin``.

        Further arguments are settings: ``Trainer(loggers={"mine": {"folder": "runs", "project": "digits"}})``.

        Example::

            @compatkit.hookimpl
            def compatkit_loggers(register):
                register("mine", MyLogger)
        """

    @hookspec
    def compatkit_remotes(self, register: Register) -> None:
        """Offer remotes: ``factory(address, **options) -> compatkit.registry.remotes.objectstore.ObjectStore``.

        The name is the scheme of the addresses: ``lab`` opens ``lab://...``. A factory may also return a
        ``compatkit.registry.remotes.packages.PackageStore``, or the ``pathlib.Path`` of a folder. Nothing should be
        read before the first call.

        Example::

            @compatkit.hookimpl
            def compatkit_remotes(register):
                register("lab", LabStore)
        """

    @hookspec
    def compatkit_exporters(self, register: Register) -> None:
        """Offer exporters: ``factory(file, module, inputs, description)`` writes a network to ``file``.

        ``module`` is in eval mode, ``inputs`` are example arguments with a batch of two, ``description`` is JSON: kind,
        contract, class names, preprocessing. Further arguments are settings.

        Example::

            @compatkit.hookimpl
            def compatkit_exporters(register):
                register("onnx", export)
        """

    @hookspec
    def compatkit_studies(self, register: Register) -> None:
        """Offer studies: ``factory() -> compatkit.experiments.studies.Study``, each under its number.

        Example::

            @compatkit.hookimpl
            def compatkit_studies(register):
                register("mine.1", lambda: STUDY)
        """

    @hookspec
    def compatkit_rungs(self, register: Register) -> None:
        """Offer rungs of bridges: ``factory(inputs) -> RungFit`` joins a head to an extractor that it does not know.

        ``inputs``, a ``compatkit.components.bridges.rungs.RungInputs``, has features of both sides, and a copy of the
        head.

        Example::

            @compatkit.hookimpl
            def compatkit_rungs(register):
                register("mine", lambda inputs: RungFit(inputs.project(ridge(inputs.moments, 0.1))))
        """

    @hookspec
    def compatkit_launchers(self, register: Register) -> None:
        """Offer launchers of sweeps: factories of objects that are called with ``(work, jobs, workers)``.

        The call is a generator. It carries out ``work(job)`` for each job, a text, in some process, at most ``workers``
        at a time (None: as many as fit), and yields the job's position with the answer, a text, or with the error that
        ended its process, as soon as it has ended. ``work`` is a function of an importable module.

        Example::

            @compatkit.hookimpl
            def compatkit_launchers(register):
                register("mine", Launcher)
        """


class Training:
    """Training hooks, implemented by the objects that a regularizer's factory returns."""

    @hookspec
    def compatkit_task(self, task: Defined, seed: int) -> Defined:
        """Return the ``compatkit.Task`` to train in place of ``task``, before networks are built; or ``task`` itself.

        Example::

            @hookimpl
            def compatkit_task(self, task, seed):
                return attrs.evolve(task, data=task.data.subset(train=1000, seed=seed))
        """
        raise NotImplementedError

    @hookspec
    def compatkit_set_up(self, setup: SetUpLike) -> None:
        """Run once before the first step: build modules, register them with the run, initialize weights.

        Example::

            @hookimpl
            def compatkit_set_up(self, setup):
                self.head = setup.add_auxiliary_head("dcc", classes=setup.shared_classes())
                self.layer = setup.own("layer", nn.Linear(64, 32))

        Args:
            setup: Tasks and networks of the run, and methods that add modules to it.
        """

    @hookspec
    def compatkit_pretrain(self, setup: SetUpLike, pretraining: PretrainingLike) -> Mapping[str, Any]:
        """Train before the first step of a run that does not resume; return JSON values for the manifest.

        Example::

            @hookimpl
            def compatkit_pretrain(self, setup, pretraining):
                for task in setup.tasks.values():
                    for batch in pretraining.batches(task, "mine", task.name, steps=100, batch_size=64):
                        self.move(task.extractor, batch.images)
                return {"steps": 100}

        Args:
            setup: As in ``compatkit_set_up``.
            pretraining: Gives batches and a progress bar.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_views(self, step: StepLike, batch: Batch) -> Batch:
        """Return a new batch to replace ``batch`` (augmentation, other labels); never modify ``batch``.

        Example::

            @hookimpl
            def compatkit_views(self, step, batch):
                return attrs.evolve(batch, images=batch.images.flip(-1))

        Args:
            step: The current step.
            batch: Images ``(N, C, H, W)``, normalized, and labels ``(N,)``; what earlier plugins returned.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_further_views(self, images: Tensor) -> Sequence[Tensor]:
        """Return further views of ``images`` for the extractor; ``step.views`` has their features.

        A view has the shape of the images, and the same pixels in other places. The trainer calls it once with the
        positions of pixels, whole numbers, and gathers the views of each batch together with its images.

        Example::

            @hookimpl
            @effect("pure")
            def compatkit_further_views(self, images):
                return [images.flip(-2)]

        Args:
            images: ``(N, C, H, W)``.

        Returns:
            Views of the same shape and type.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_losses(self, step: StepLike) -> Mapping[str, Tensor]:
        """Return scalar losses by name; the trainer weights, adds and logs them as ``instance/name``.

        Example::

            @hookimpl
            def compatkit_losses(self, step):
                return {"norm": step.features.square().mean()}

        Args:
            step: The current step; features and outputs are computed on first use.

        Returns:
            Scalars, each on the device of the step.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_after_backward(self, step: StepLike) -> None:
        """Run after the gradients of a step are complete and before the optimizer updates the weights.

        Example::

            @hookimpl
            def compatkit_after_backward(self, step):
                self.clip(step.task.parameters())
        """

    @hookspec
    def compatkit_after_step(self, step: StepLike) -> None:
        """Run after the optimizer updated the weights; ``step.losses`` has the losses of the step, on the device.

        Example::

            @hookimpl
            def compatkit_after_step(self, step):
                self.average.update(step.task)
        """

    @hookspec
    def compatkit_after_epoch(self, step: StepLike) -> None:
        """Run after a task has seen each of its training examples once more.

        Example::

            @hookimpl
            def compatkit_after_epoch(self, step):
                self.history.append(step.number)
        """

    @hookspec
    def compatkit_finish(self, setup: SetUpLike) -> None:
        """Run once after the last step.

        Example::

            @hookimpl
            def compatkit_finish(self, setup):
                self.average.copy_to(setup.tasks)
        """

    @hookspec
    def compatkit_state(self) -> Mapping[str, Any]:
        """Return tensors and JSON values for the checkpoint (modules that the run owns are saved already).

        Example::

            @hookimpl
            def compatkit_state(self):
                return {"count": self.count}
        """
        raise NotImplementedError

    @hookspec
    def compatkit_load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``compatkit_state``.

        Example::

            @hookimpl
            def compatkit_load_state(self, state):
                self.count = state["count"]
        """
