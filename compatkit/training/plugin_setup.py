"""Set-up of a run, in which plugins initialize weights and request modules, heads and recorded layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from compatkit.adapters.blueprints import build, with_classes
from compatkit.contracts.contract import Blueprint, Label
from compatkit.contracts.labels import common
from compatkit.errors import CutError, UnknownName, UsageError, type_of
from compatkit.foundation.codec import dumps
from compatkit.foundation.limits import OneOf
from compatkit.hooks import RunInfo
from compatkit.registry.names import check_name
from compatkit.registry.weights.tensorchecks import check_values
from compatkit.training.averaged_network import AveragedNetwork
from compatkit.training.layer_recording import Recorder
from compatkit.training.optim import Averages, Schedule
from compatkit.training.precision import Precision
from compatkit.training.randomness import generator, seed_of
from compatkit.training.task_state import EXTRACTOR, HEAD, AuxiliaryHead, ReleasedExtractor, TaskState

MIN_CLASSES = 2
"""Number of classes of a classification head at least."""
SIDES = ("extractor", "head")
STATISTICS = OneOf(("batch", "stored"))
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@attrs.define(eq=False)
class SetUp:
    """Set-up of a run for plugins, before the first step and after the last.

    Attributes:
        seed: Seed of the run.
        precision: Device, dtype and memory layout.
        tasks: Tasks by name, in the order of training.
        frozen: Heads passed in with ``frozen=``, by name.
        reset: Function that draws the initial weights of a task again.
        auxiliary: Auxiliary heads of this run by name, including frozen ones.
        owners: Trained modules: ``<task>.extractor``, ``<task>.head``, ``shared.<head>``, ``plugin.<instance>.<name>``.
        recorders: Layers to record, by task with such layers.
        metadata: Reported choices by plugin instance.
        gradients: Whether gradients are balanced, by plugin instance whose gradients are compared with the task's.
        instance: Name of the plugin instance in set-up, or None.
        released: Extractor passed in with ``frozen=``, or None.
        compared: Whether a regularizer of this run uses the released extractor.
        optimizers: Settings of the optimizers of plugins' modules that differ from the trainer's, by owner.
        averages: Moving averages of the trained modules, once the loop is made, or None.
        run: Steps, batch size, name, folder and device of the run, and whether it is dry.
    """

    seed: int
    precision: Precision
    tasks: dict[str, TaskState]
    frozen: Mapping[str, AuxiliaryHead]
    reset: Callable[[TaskState, tuple[str | int, ...], int | None, bool], None]
    auxiliary: dict[str, AuxiliaryHead] = attrs.field(factory=dict)
    owners: dict[str, nn.Module] = attrs.field(factory=dict)
    recorders: dict[str, Recorder] = attrs.field(factory=dict)
    metadata: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    gradients: dict[str, bool] = attrs.field(factory=dict)
    instance: str | None = None
    released: ReleasedExtractor | None = None
    compared: bool = False
    optimizers: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    averages: Averages | None = None
    run: RunInfo = attrs.field(kw_only=True)

    def rng(self, *key: str | int) -> torch.Generator:
        """Return a CPU generator for a plugin; ``key`` starts with the name of the plugin instance."""
        return generator(self.seed, "plugin", *key)

    def initialize(
        self, task: TaskState, *stream: str | int, seed: int | None = None, class_layer: bool = True
    ) -> None:
        """Draw the task's initial weights again, from another stream of random numbers than the task's own.

        Args:
            task: State of the task; its modules are changed in place.
            stream: Name of the stream; equal streams and seeds give equal weights in any run.
            seed: Seed to use instead of the run's seed, or None.
            class_layer: Whether to draw the class layer too.
        """
        self.reset(task, stream, seed, class_layer)

    def own(
        self,
        name: str,
        module: nn.Module,
        *,
        optimizer: str | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        optimizer_options: Mapping[str, Any] | None = None,
        schedule: str | Schedule | None = None,
    ) -> nn.Module:
        """Register a module of the plugin with the run: it is trained like a network, and saved in checkpoints.

        It is moved to the run's device in place and gets an optimizer of its own, which updates it in every step of
        every task, except parameters whose ``requires_grad`` is False. ``Trainer.explain`` lists it as
        ``plugin.<instance>.<name>``. Weights that torch draws in ``compatkit_set_up`` follow from the seed.

        Optimizer and rates are the trainer's unless they are given, as the trainer spells them; they are then part of
        the plan, as ``chosen``.

        Args:
            name: Purpose of the module: letters, digits, ``_`` and ``-``; unique among the plugin's modules.
            module: Module created in ``compatkit_set_up``, with all its shapes known.
            optimizer: ``"adam"``, ``"sgd"`` or a name of timm.
            lr: Initial learning rate, to which the trainer's schedule is applied as a factor.
            momentum: Momentum, for optimizers that have one.
            weight_decay: Weight decay.
            optimizer_options: Further arguments of the optimizer; the trainer's only hold for the trainer's optimizer.
            schedule: Schedule of its own, without the trainer's warm-up: ``"constant"``, or ``Schedule(...)``.

        Returns:
            The same module.

        Raises:
            UsageError: Called outside of ``compatkit_set_up``; the name is taken or invalid; ``module`` is not a
                module, or a lazy one.
        """
        instance = self._current_instance("own", "optimizers are created before the first step")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"own expects a name of letters, digits, '_' and '-', such as 'projection'; got {name!r}.",
                subject=name,
            )
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"own expects a torch.nn.Module as {name!r}; got {type_of(module)}. Wrap a single parameter in a "
                "module.",
                subject=name,
            )
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            raise UsageError(
                f"The module {name!r} is lazy. Give its shapes; setup.tasks[...].feature_shape has those of the "
                "features.",
                subject=name,
            )
        owner = f"plugin.{instance}.{name}"
        if owner in self.owners:
            raise UsageError(
                f"This run already owns a module {owner!r}. Give each its own name.", subject=name
            )
        rule = {
            "optimizer": optimizer,
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "optimizer_options": optimizer_options,
            "schedule": schedule,
        }
        if given := {key: value for key, value in rule.items() if value is not None}:
            self.optimizers[owner] = given
            stated = {
                key: attrs.asdict(value) if isinstance(value, Schedule) else value
                for key, value in given.items()
            }
            chosen = self.metadata.setdefault(instance, {})
            chosen["optimizers"] = {**chosen.get("optimizers", {}), name: stated}
        self.owners[owner] = module
        return self.precision.place(module)

    def build(self, blueprint: Blueprint, *key: str | int) -> nn.Module:
        """Build a module that the run owns, see ``own``, with initial weights of the stream ``key``.

        Args:
            blueprint: Architecture of the module, such as ``setup.tasks[...].head_blueprint``.
            key: Name of the stream; equal streams give equal weights in any run. Joined by ``-``, it is the name of the
                module.

        Returns:
            Module on the run's device.

        Raises:
            UsageError: As for ``own``.
        """
        return self.own("-".join(map(str, key)), self._drawn(blueprint, *key))

    def _drawn(self, blueprint: Blueprint, *key: str | int) -> nn.Module:
        """Return a module with initial weights of the stream ``key``, on the run's device."""
        return self.precision.place(build(blueprint, seed=seed_of(self.seed, "initial", *key)))

    def averaged(
        self, task: TaskState, *, statistics: Literal["batch", "stored"] = "batch"
    ) -> AveragedNetwork:
        """Return the moving averages of a task's network, to run in the hooks of steps.

        Args:
            task: State of the task.
            statistics: Batch normalization: ``"batch"`` or ``"stored"``; see ``AveragedNetwork``.

        Raises:
            UsageError: The run has no averages.
        """
        STATISTICS.check("averaged", statistics=statistics)
        if self.run.ema is None:
            who = f"{self.instance}: " if self.instance else ""
            raise UsageError(
                f"{who}the run has no moving averages of its weights. Train with Trainer(ema=0.999), or with "
                "ema = 0.999 in [trainer] of a recipe.",
                subject="ema",
            )

        def values() -> Mapping[str, Mapping[str, Tensor]]:
            if self.averages is None:
                raise UsageError("Averages can be run in the hooks of steps, not in compatkit_set_up.")
            return self.averages.values

        return AveragedNetwork(task, statistics, values)

    def record_layers(self, task: TaskState, names: Iterable[str]) -> None:
        """Request inputs and outputs of layers of a task's network, as ``step.layers`` in ``compatkit_losses``.

        Args:
            task: Task whose network has the layers.
            names: Paths of modules in the complete network, as in its state dict.

        Raises:
            UnknownName: The network has no such layer.
            UsageError: Called outside of ``compatkit_set_up``; ``names`` is a string; or a layer belongs to the head of
                a task without labels, which does not run.
        """
        instance = self._current_instance("record_layers", "layers are chosen before the first step")
        if isinstance(names, str):
            raise UsageError(f"record_layers expects several names, such as [{names!r}]; got {names!r}.")
        new = Recorder(task.extractor, task.head, None if task.runs_head else task.name)
        self.recorders.setdefault(task.name, new).request(instance, names)

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Report choices of the plugin, for the plan of the run and its manifest, as ``chosen``.

        Args:
            facts: JSON values, equal for equal runs; those of a second call are added.

        Raises:
            FormatError: A value is not a JSON value.
            UsageError: Called outside of ``compatkit_set_up``.
        """
        instance = self._current_instance("tell", "the plan is written before the first step")
        dumps(dict(facts))
        self.metadata.setdefault(instance, {}).update(facts)

    def compare_gradients(self, *, balance: bool = False) -> None:
        """Compare the gradient of the plugin's losses with the task's, over the task's own network.

        The history has the ratio of their norms as ``<instance>/gradient_ratio``, including the weight. It is measured
        in eager steps: the first, the last, and the last of each row of the history. Such a step needs two more
        backward passes. The plugin cannot use this name for a loss.

        Args:
            balance: Whether to scale the losses in every step so that the norm of their gradient is the plugin's weight
                times that of the task's. The history then has the factor as ``<instance>/factor``.

        Raises:
            UsageError: Called outside of ``compatkit_set_up``, or a task has no loss of its own to compare with.
        """
        instance = self._current_instance("compare_gradients", "steps are planned before the first")
        for state in self.tasks.values():
            if balance and not state.runs_head:
                raise UsageError(
                    f"{instance}: the head of task {state.name!r} does not run, so there is no loss to balance "
                    "gradients against. Give a plain weight.",
                    subject=state.name,
                )
        self.gradients[instance] = balance

    def _current_instance(self, method: str, reason: str) -> str:
        """Return the plugin instance in set-up; raise outside of ``compatkit_set_up``."""
        if self.instance is None:
            raise UsageError(f"{method} can only be called in compatkit_set_up: {reason}.")
        return self.instance

    def shared_classes(self) -> tuple[Label, ...]:
        """Return the classes that at least two tasks share, or all classes of a single task.

        Names and order are those of the first task with a class; aliases of class names match.
        """
        states = list(self.tasks.values())
        if len(states) == 1:
            return states[0].labels
        shared: list[Label] = []
        for index, state in enumerate(states):
            later_states = states[index + 1 :]
            outputs = {output for later in later_states for output, _ in common(state.labels, later.labels)}
            labels = [state.labels[output] for output in sorted(outputs)]
            shared += [label for label in labels if not common([label], shared)]
        return tuple(shared)

    def add_auxiliary_head(
        self,
        name: str,
        *,
        classes: Sequence[Label] | None = None,
        outputs: int | None = None,
        like: str | None = None,
    ) -> AuxiliaryHead:
        """Add a head with the architecture of a target head, or use the frozen one of that name.

        Args:
            name: Purpose of the head; ``<prefix>/shared.<name>`` when published.
            classes: Classes of the outputs, for a head that classifies.
            outputs: Number of outputs, for any other head.
            like: Task whose head has the desired architecture; None takes the first task's.

        Raises:
            InvalidName: No part can be published under the name.
            UsageError: There are fewer than two classes; the features of the tasks do not fit one head; the name is
                taken in this run; the network cannot have that number of outputs; or the frozen head takes other
                features, or has other classes or outputs.
            UnknownName: No task is called ``like``.
        """
        if name in self.auxiliary:
            raise UsageError(
                f"This run already has an auxiliary head {name!r}; two plugins, or two instances of one, cannot train "
                "the same head. Leave one of them out."
            )
        check_name(f"parts/shared.{name}")  # name of the published component
        head_classes = self.frozen[name].labels if name in self.frozen else classes
        if head_classes is not None and len(head_classes) < MIN_CLASSES:
            raise UsageError(
                f"The auxiliary head {name!r} has {len(head_classes)} classes, so its loss is always 0. Give at least "
                f"{MIN_CLASSES}.",
                subject=name,
            )
        if like is not None and like not in self.tasks:
            raise UnknownName(
                f"like={like!r} is no task of this run; its tasks are {', '.join(self.tasks)}.", subject=like
            )
        first = self.tasks[like if like is not None else next(iter(self.tasks))]
        for state in self.tasks.values():
            self._check_width(name, first, state)
        if name in self.frozen:
            head = self.frozen[name]
            (shape,) = {self._output_shape(head, state) for state in self.tasks.values()}
            if outputs is not None and shape != (outputs,):
                raise UsageError(
                    f"The frozen auxiliary head {name!r} has outputs of shape {shape}; this run needs {outputs}. Use "
                    "the settings that it was trained with."
                )
            names, needed = ([label.name for label in labels or ()] for labels in (head.labels, classes))
            if classes is not None and names != needed:
                raise UsageError(
                    f"The frozen auxiliary head {name!r} has the classes {names}; this run needs {needed}. Use the "
                    "settings that it was trained with."
                )
            return self._add_head(name, head)
        count = len(classes) if classes is not None else outputs
        if not count:
            raise UsageError(f"The auxiliary head {name!r} needs classes or a number of outputs.")
        blueprint = with_classes(first.head_blueprint, count)
        module = self._drawn(blueprint, "auxiliary", name)
        head = AuxiliaryHead(name, blueprint, module, tuple(classes) if classes is not None else None)
        for state in self.tasks.values():
            shape = self._output_shape(head, state)
            if shape != (count,):
                raise UsageError(
                    f"Auxiliary head {name!r}: {blueprint.model} after {blueprint.cut} gives {shape}, not {count} "
                    "outputs, since it has no class layer. Cut the network before its class layer."
                )
        self.owners[f"shared.{name}"] = module
        return self._add_head(name, head)

    def _check_width(self, name: str, first: TaskState, state: TaskState) -> None:
        """Raise if no head can take the features of both tasks.

        Maps may differ in height and width if the head pools them, which ``_output_shape`` tests.
        """
        expected, shape = first.feature_shape[1:], state.feature_shape[1:]
        if expected[:1] == shape[:1] and len(expected) == len(shape):
            return
        raise UsageError(
            f"The auxiliary head {name!r} needs features of one width from all tasks; {first.name!r} gives "
            f"{expected}, {state.name!r} gives {shape}. Choose cuts of equal width, or set Task(width={expected[0]}) "
            "for all: extractors then end with a 1x1 convolution."
        )

    def frozen_modules(self) -> dict[str, nn.Module]:
        """Return the modules that were passed in with ``frozen=``, as ``frozen.<name>``."""
        modules = {f"frozen.{name}": head.module for name, head in self.frozen.items()}
        return modules if self.released is None else {**modules, f"frozen.{EXTRACTOR}": self.released.module}

    def released_head(self) -> AuxiliaryHead:
        """Use the released target head that was passed in with ``frozen=`` (``registry.released``).

        Raises:
            UsageError: There is none, it is in use already, or it does not take the tasks' features.
        """
        if HEAD not in self.frozen:
            raise UsageError(
                "There is no released head to train against. Give Trainer.fit(..., frozen=registry.released(HEAD)), or "
                "[frozen] with head = 'NAME@VERSION' in a recipe."
            )
        return self.add_auxiliary_head(HEAD)

    def released_extractor(self, task: TaskState) -> Callable[[Tensor], Tensor]:
        """Return a function from a task's normalized images to features of the released extractor, without gradients.

        The images are normalized by the extractor's mean and standard deviation instead of the task's.

        Args:
            task: State of the task.

        Returns:
            Function ``(N, C, H, W) -> (N, ...)``, with features in the shape of the task's.

        Raises:
            UsageError: There is none, it takes other images, or its features have another shape.
        """
        if self.released is None:
            raise UsageError(
                "There is no released extractor to compare with. Give Trainer.fit(..., frozen=registry.released(HEAD, "
                "EXTRACTOR)), or [frozen] with extractor = 'NAME@VERSION' in a recipe."
            )
        self.compared = True
        return self.released.on(task.data, task.feature_shape[1:], task.name, self.precision.device)

    def _add_head(self, name: str, head: AuxiliaryHead) -> AuxiliaryHead:
        """Add a head to those of this run, with the name of the plugin."""
        head.plugin = self.instance or head.plugin
        self.auxiliary[name] = head
        return head

    def _output_shape(self, head: AuxiliaryHead, task: TaskState) -> tuple[int, ...]:
        """Return the shape of a shared head's output per image; raise if it does not take a task's features."""
        features = torch.zeros(2, *task.feature_shape[1:], device=self.precision.device)
        was_training = head.module.training
        try:
            with torch.no_grad():
                return tuple(head.module.eval()(features).shape[1:])
        except (RuntimeError, CutError) as error:
            raise UsageError(
                f"The {'frozen ' if head.frozen else ''}auxiliary head {head.name!r} ({head.blueprint.model} after "
                f"{head.blueprint.cut}) does not take the features {task.feature_shape[1:]} of task {task.name!r}: "
                f"{error}"
            ) from error
        finally:
            head.module.train(was_training)


def check_weights(setup: SetUp, cause: str) -> None:
    """Raise if a module of the run has invalid values.

    Args:
        setup: Setup of the run.
        cause: Probable cause, for the message.

    Raises:
        IntegrityError: See ``check_values``.
    """
    parts = {f"{name}.{side}": getattr(state, side) for name, state in setup.tasks.items() for side in SIDES}
    for owner, module in {**parts, **setup.owners, **setup.frozen_modules()}.items():
        check_values(
            module.state_dict(), f"{cause}, in {owner}", "Set finite weights and variances from 0 on."
        )
