"""The set-up of a run, in which plugins initialize weights and request modules, heads and layer records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from compatkit.adapters.blueprints import build, with_classes
from compatkit.contracts.contract import Blueprint, Label
from compatkit.contracts.labels import common
from compatkit.errors import CutError, UnknownName, UsageError, type_of
from compatkit.foundation.codec import dumps
from compatkit.registry.names import check_name
from compatkit.registry.weights.tensorchecks import check_values
from compatkit.training.layer_recording import Recorder
from compatkit.training.precision import Precision
from compatkit.training.randomness import generator, seed_of
from compatkit.training.task_state import EXTRACTOR, HEAD, AuxiliaryHead, ReleasedExtractor, TaskState

LEAST_CLASSES = 2
"""Classes of a head that classifies: one class has nothing to tell apart."""
SIDES = ("extractor", "head")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@attrs.define(eq=False)
class SetUp:
    """The set-up of a run, as plugins see it before the first step and after the last.

    Attributes:
        tasks: By name, in the order of training.
        auxiliary: Auxiliary heads of this run by name, frozen ones included.
        owners: Trained modules: ``<task>.extractor``, ``<task>.head``, ``shared.<head>``, ``plugin.<instance>.<name>``.
        frozen: Heads that were given as frozen, by name.
        released: An extractor that was given as frozen, or None.
        compared: Whether a regularizer of this run uses it.
        recorders: By task, the layers to record; only tasks for which a plugin asked.
        metadata: By instance, the choices that it reported.
        gradients: By instance whose gradients are compared with the task's, whether they are balanced too.
        instance: The instance that is being set up.
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

    def rng(self, *key: str | int) -> torch.Generator:
        """Return a CPU generator of the plugin's own; ``key`` starts with the plugin's instance name."""
        return generator(self.seed, "plugin", *key)

    def initialize(
        self, task: TaskState, *stream: str | int, seed: int | None = None, class_layer: bool = True
    ) -> None:
        """Draw the task's initial weights anew from ``stream`` instead of from a stream of its own.

        Args:
            task: Whose network; its modules stay the same objects.
            stream: Names the stream; the same stream and seed give the same weights in any run.
            seed: Used in place of the run's seed.
            class_layer: Whether the class layer is drawn from it too; else it is not changed.
        """
        self.reset(task, stream, seed, class_layer)

    def own(self, name: str, module: nn.Module) -> nn.Module:
        """Hand a module of the plugin to the run: it is trained like a network, and saved in checkpoints.

        It is moved to the run's device in place and gets an optimizer of its own, which updates it in every step of
        every task, except parameters whose ``requires_grad`` is False. ``Trainer.explain`` lists it as
        ``plugin.<instance>.<name>``. Weights that torch draws in ``compatkit_set_up`` follow from the seed.

        Args:
            name: Its purpose: letters, digits, ``_`` and ``-``; unique among the plugin's modules.
            module: Made in ``compatkit_set_up``, with all its shapes known.

        Returns:
            The same module.

        Raises:
            UsageError: Called outside of ``compatkit_set_up``; the name is taken or invalid; it is no module, or a lazy
                one.
        """
        instance = self._current_instance("own", "optimizers are made before the first step")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"own expects a name of letters, digits, '_' and '-', such as 'projection'; got {name!r}.",
                subject=name,
            )
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"own expects a torch.nn.Module as {name!r}; got {type_of(module)}. Put a single parameter "
                "into a module of its own.",
                subject=name,
            )
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            raise UsageError(
                f"The module {name!r} is lazy: its shapes are not known before the first step. Give them; "
                "setup.tasks[...].feature_shape has those of the features.",
                subject=name,
            )
        owner = f"plugin.{instance}.{name}"
        if owner in self.owners:
            raise UsageError(f"This run owns a module {owner!r} already. Give each a name.", subject=name)
        self.owners[owner] = module
        return self.precision.place(module)

    def build(self, blueprint: Blueprint, *key: str | int) -> nn.Module:
        """Build a module that the run owns, see ``own``, with initial weights of the stream ``key``.

        Args:
            blueprint: Such as ``setup.tasks[...].head_blueprint``.
            key: Names the stream; the same gives the same weights in any run. Joined by ``-``, it names the module.

        Returns:
            The module, on the run's device.

        Raises:
            UsageError: As for ``own``.
        """
        return self.own("-".join(map(str, key)), self._drawn(blueprint, *key))

    def _drawn(self, blueprint: Blueprint, *key: str | int) -> nn.Module:
        """Return a module with initial weights of the stream ``key``, on the run's device."""
        return self.precision.place(build(blueprint, seed=seed_of(self.seed, "initial", *key)))

    def record_layers(self, task: TaskState, names: Iterable[str]) -> None:
        """Ask for inputs and outputs of layers of a task's network, as ``step.layers`` in ``compatkit_losses``.

        Args:
            task: Whose network.
            names: Paths of modules in the whole network, as in its state dict.

        Raises:
            UnknownName: The network has no such layer.
            UsageError: Called outside of ``compatkit_set_up``, or ``names`` is one text; or a layer lies in the head
                of a task without labels, which does not run.
        """
        instance = self._current_instance("record_layers", "layers are chosen before the first step")
        if isinstance(names, str):
            raise UsageError(f"record_layers expects several names, such as [{names!r}]; got {names!r}.")
        made = Recorder(task.extractor, task.head, None if task.runs_head else task.name)
        recorder = self.recorders.setdefault(task.name, made)
        recorder.request(instance, names)

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Report what the plugin chose by itself, for the plan of the run and its manifest, as ``chosen``.

        Args:
            facts: JSON values, the same for the same run; those of a second call are added.

        Raises:
            FormatError: No manifest can hold them.
            UsageError: Called outside of ``compatkit_set_up``.
        """
        instance = self._current_instance("tell", "a plan is made before the first step")
        dumps(dict(facts))
        self.metadata.setdefault(instance, {}).update(facts)

    def compare_gradients(self, *, balance: bool = False) -> None:
        """Compare the gradient of the plugin's losses with the task's, over the task's own network.

        The history has the ratio of their norms as ``<instance>/gradient_ratio``, weight included: measured in the
        first step, the last, and each in which a row is closed, where steps are not compiled or captured. It costs two
        more backward passes in such a step; the plugin cannot use that name for a loss.

        Args:
            balance: Scale the losses in every step, such that the norm of their gradient is the plugin's weight times
                that of the task's. The history has the factor as ``<instance>/factor`` then.

        Raises:
            UsageError: Called outside of ``compatkit_set_up``, or a task has no loss of its own to compare with.
        """
        instance = self._current_instance(
            "compare_gradients", "what a step measures is settled before the first"
        )
        for state in self.tasks.values():
            if balance and not state.runs_head:
                raise UsageError(
                    f"{instance}: gradients are balanced against those of the task's own loss; task {state.name!r} has "
                    "none, as its head does not run. Give a plain weight.",
                    subject=state.name,
                )
        self.gradients[instance] = balance

    def _current_instance(self, word: str, why: str) -> str:
        """Return the instance that is being set up."""
        if self.instance is None:
            raise UsageError(f"{word} is for compatkit_set_up: {why}.")
        return self.instance

    def shared_classes(self) -> tuple[Label, ...]:
        """Return the classes that at least two tasks share, or all classes where there is one task.

        Names and order are those of the first task that has them; aliases of class names match.
        """
        states = list(self.tasks.values())
        if len(states) == 1:
            return states[0].labels
        shared: list[Label] = []
        for position, state in enumerate(states):
            later = states[position + 1 :]
            also = {own for other in later for own, _ in common(state.labels, other.labels)}
            shared += [state.labels[own] for own in sorted(also) if not common([state.labels[own]], shared)]
        return tuple(shared)

    def add_auxiliary_head(
        self,
        name: str,
        *,
        classes: Sequence[Label] | None = None,
        outputs: int | None = None,
        like: str | None = None,
    ) -> AuxiliaryHead:
        """Add a head with the architecture of a target head, or take the frozen one of that name.

        Args:
            name: Its purpose; ``<prefix>/shared.<name>`` when published.
            classes: Its outputs, for a head that classifies.
            outputs: Count of outputs, for any other head.
            like: The task whose head has the desired architecture; None takes the first task's.

        Raises:
            InvalidName: No part can be published under the name.
            UsageError: There are fewer than two classes; the tasks' features differ in width, or in size where the
                head takes one only; the name is taken in this run, the network cannot have that count of outputs, or
                the frozen head takes other features, has other classes or another count of outputs.
            UnknownName: No task is called ``like``.
        """
        if name in self.auxiliary:
            raise UsageError(
                f"This run has an auxiliary head {name!r} already; two plugins, or two instances of one, cannot "
                "train the same head. Leave one of them out."
            )
        check_name(f"parts/shared.{name}")  # under which it is published
        answers = self.frozen[name].labels if name in self.frozen else classes
        if answers is not None and len(answers) < LEAST_CLASSES:
            raise UsageError(
                f"The auxiliary head {name!r} tells apart {len(answers)} classes, which is nothing to learn: its loss "
                f"is 0 whatever the features are. Give {LEAST_CLASSES} at least.",
                subject=name,
            )
        if like is not None and like not in self.tasks:
            raise UnknownName(
                f"like={like!r} names no task of this run, which has {', '.join(self.tasks)}. Name the one whose "
                "head has the architecture that the shared head is to have.",
                subject=like,
            )
        first = self.tasks[like if like is not None else next(iter(self.tasks))]
        for state in self.tasks.values():
            self._check_width(name, first, state)
        if name in self.frozen:
            head = self.frozen[name]
            (shape,) = {self._accepts(head, state) for state in self.tasks.values()}
            if outputs is not None and shape != (outputs,):
                raise UsageError(
                    f"The frozen auxiliary head {name!r} gives {shape}; this run asks for {outputs} outputs. Use the "
                    "settings that it was trained with."
                )
            names, wanted = ([label.name for label in some or ()] for some in (head.labels, classes))
            if classes is not None and names != wanted:
                raise UsageError(
                    f"The frozen auxiliary head {name!r} tells apart {names}; this run asks for {wanted}. Use the "
                    "settings that it was trained with."
                )
            return self._add_head(name, head)
        count = len(classes) if classes is not None else outputs
        if not count:
            raise UsageError(f"The auxiliary head {name!r} needs classes or a count of outputs.")
        blueprint = with_classes(first.head_blueprint, count)
        module = self._drawn(blueprint, "auxiliary", name)
        head = AuxiliaryHead(name, blueprint, module, tuple(classes) if classes is not None else None)
        for state in self.tasks.values():
            shape = self._accepts(head, state)
            if shape != (count,):
                raise UsageError(
                    f"A head of {blueprint.model} after {blueprint.cut} gives {shape} for {count} requested outputs "
                    f"(auxiliary head {name!r}): the class layer is not in it. Cut the network before its class layer."
                )
        self.owners[f"shared.{name}"] = module
        return self._add_head(name, head)

    def _check_width(self, name: str, first: TaskState, state: TaskState) -> None:
        """Raise if no head can take the features of both tasks.

        Maps may differ in rows and columns, if the head's pooling absorbs it; ``_accepts`` tries that.
        """
        expected, shape = first.feature_shape[1:], state.feature_shape[1:]
        if expected[:1] == shape[:1] and len(expected) == len(shape):
            return
        raise UsageError(
            f"The auxiliary head {name!r} needs features of one width from all tasks; {first.name!r} gives {expected}, "
            f"{state.name!r} gives {shape}. Give all tasks one width, Task(width={expected[0]}): extractors then end "
            "with a 1x1 convolution to it. Or choose cuts of equal width."
        )

    def unmoved(self) -> dict[str, nn.Module]:
        """Return the modules that were passed in with ``frozen=``, as ``frozen.<name>``."""
        modules = {f"frozen.{name}": head.module for name, head in self.frozen.items()}
        return modules if self.released is None else {**modules, f"frozen.{EXTRACTOR}": self.released.module}

    def released_head(self) -> AuxiliaryHead:
        """Take the released target head that was passed in with ``frozen=`` (``registry.released``).

        Raises:
            UsageError: There is none, it is taken already, or does not take the tasks' features.
        """
        if HEAD not in self.frozen:
            raise UsageError(
                "There is no released head to train against. Hand it in: Trainer.fit(..., "
                "frozen=registry.released(HEAD)), or in a recipe [frozen] with head = 'NAME@VERSION'."
            )
        return self.add_auxiliary_head(HEAD)

    def released_extractor(self, task: TaskState) -> Callable[[Tensor], Tensor]:
        """Return a function from a task's normalized images to features of the released extractor, without gradients.

        It normalizes the images with the extractor's own mean and standard deviation in place of the task's.

        Returns:
            A function ``(N, C, H, W) -> (N, ...)``, in the shape of the task's features.

        Raises:
            UsageError: There is none, it takes other images, or gives features of another shape.
        """
        if self.released is None:
            raise UsageError(
                "There is no released extractor to compare with. Hand it in: Trainer.fit(..., "
                "frozen=registry.released(HEAD, EXTRACTOR)), or in a recipe [frozen] with extractor = 'NAME@VERSION'."
            )
        self.compared = True
        return self.released.on(task.data, task.feature_shape[1:], task.name, self.precision.device)

    def _add_head(self, name: str, head: AuxiliaryHead) -> AuxiliaryHead:
        """Add a head to those of this run, with the plugin that requested it."""
        head.plugin = self.instance or head.plugin
        self.auxiliary[name] = head
        return head

    def _accepts(self, head: AuxiliaryHead, task: TaskState) -> tuple[int, ...]:
        """Return the shape of a shared head's output for an image, or raise if it does not take a task's features."""
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
    """Raise if a module of the run holds values that no step can use.

    Args:
        setup: Of the run.
        cause: Who may have set them, for the message.

    Raises:
        IntegrityError: See ``check_values``.
    """
    parts = {f"{name}.{side}": getattr(state, side) for name, state in setup.tasks.items() for side in SIDES}
    for owner, module in {**parts, **setup.owners, **setup.unmoved()}.items():
        check_values(
            module.state_dict(), f"{cause}, in {owner}", "Set finite weights and variances from 0 on."
        )
