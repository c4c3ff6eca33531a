"""Layer records: the input and output of layers in the target pass of a step, for the plugins that ask for them.

A forward hook on each requested layer notes its input and output while the objective runs the network on the batch, and
at no other time. Hooks are in place only in steps in which a plugin that requested them is active.

A later write in place would change a recorded tensor. Activations with ``inplace=True`` therefore work on a copy while
layers are recorded. Other writes are found before the first step by a dry run, since torch counts the writes into every
tensor; tensors that are overwritten there are copied in each step.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from compatkit.errors import UnknownName, UsageError, near, type_of
from compatkit.training.precision import Precision
from compatkit.training.randomness import preserved

IMAGES = 4
"""Images of a dry run."""


class LayerCall(NamedTuple):
    """One call of a layer in the target pass.

    Attributes:
        input: Its first argument, ``(batch, ...)``.
        output: Its result, ``(batch, ...)``, unchanged also where an in-place activation follows.
        layer: The module.
    """

    input: Tensor
    output: Tensor
    layer: nn.Module


Layers = Mapping[str, Sequence[LayerCall]]
NOTHING: Layers = {}


class Pass:
    """Whether the target pass of a task is running; shared by the notes of all its layers."""

    def __init__(self) -> None:
        self.open = False
        self.gradients = False


class Notes:
    """The calls of one layer since the pass began; the layer holds it as ``_layer_notes``.

    Attributes:
        name: Path of the layer in the whole network.
        during: The pass to record.
        calls: In their order.
        copied: For input and output, whether the tensor is overwritten later and must be copied.
        rows: For input and output, whether its first dimension is the batch.
    """

    def __init__(self, name: str, during: Pass) -> None:
        self.name, self.during = name, during
        self.calls: list[LayerCall] = []
        self.copied: tuple[bool, bool] = (False, False)
        self.rows: tuple[bool, bool] = (True, True)

    def add(self, layer: nn.Module, input: Any, output: Any) -> None:
        """Record a call.

        Args:
            layer: The module that was called.
            input: Its first argument.
            output: Its result.

        Raises:
            UsageError: The call cannot be recorded.
        """
        if not isinstance(input, Tensor) or not isinstance(output, Tensor):
            raise UsageError(
                f"The layer {self.name!r} cannot be recorded: it takes {type_of(input)} and gives "
                f"{type_of(output)}, not one tensor each. Ask for layers inside of it.",
                subject=self.name,
            )
        if self.during.gradients and not torch.is_grad_enabled():
            raise UsageError(
                f"The layer {self.name!r} cannot be recorded: the network runs it without gradients, as reentrant "
                "gradient checkpointing does. Use timm's set_grad_checkpointing(), or torch.utils.checkpoint with "
                "use_reentrant=False.",
                subject=self.name,
            )
        if self.copied[0]:
            input = input.clone()
        if self.copied[1]:
            output = output.clone()
        self.calls.append(LayerCall(input, output, layer))

    def narrow(self, views: int) -> None:
        """Keep only the batch's rows of each call: the first of ``views`` equal parts of one pass."""

        def first(call: Tensor, rows: bool) -> Tensor:
            return call.narrow(0, 0, len(call) // views) if rows else call

        self.calls = [
            LayerCall(first(call.input, self.rows[0]), first(call.output, self.rows[1]), call.layer)
            for call in self.calls
        ]


def _note(module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> None:
    """Forward hook of every recorded layer: one function for all, which compiled graphs of other tasks share."""
    notes: Notes = module._layer_notes  # type: ignore[assignment]
    if notes.during.open:
        notes.add(module, first_of(arguments, keywords), output)


def first_of(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the first argument of a call, None where there is none.

    Args:
        arguments: Positional arguments of the call.
        keywords: Its keyword arguments.
    """
    return arguments[0] if arguments else next(iter(keywords.values()), None)


class LayerRecording:
    """The layers of one task that are recorded in some of its steps.

    Attributes:
        names: By instance, the layers that it requested.
        notes: By layer; a layer with several names has one.
        aliases: From every name of a layer to the one under which its notes are kept.
    """

    def __init__(
        self,
        names: Mapping[str, tuple[str, ...]],
        notes: Mapping[str, Notes],
        aliases: Mapping[str, str],
        during: Pass,
    ) -> None:
        self.names, self.notes, self.aliases, self._during = names, notes, aliases, during

    def begin(self) -> None:
        """Start to record."""
        self._during.gradients = torch.is_grad_enabled()
        self._during.open = True

    def narrow(self, views: int) -> None:
        """Keep only the batch's rows of all calls so far; see ``Notes.narrow``."""
        for notes in self.notes.values():
            notes.narrow(views)

    def end(self) -> Layers:
        """Stop, and return the calls of every layer by name."""
        self._during.open = False
        calls: dict[str, Sequence[LayerCall]] = {}
        for name, notes in self.notes.items():
            calls[name], notes.calls = notes.calls, []
        return calls

    def of(self, instance: str, calls: Layers) -> Layers:
        """Return the calls of the layers that an instance requested.

        Args:
            instance: Name of the plugin's instance.
            calls: Calls of all recorded layers.
        """
        return {name: calls[self.aliases[name]] for name in self.names.get(instance, ())}


def _submodules(part: nn.Module, name: str) -> list[nn.Module]:
    """Return the module of that path, if a part has it."""
    return [module for path, module in part.named_modules(remove_duplicate=False) if name and path == name]


@attrs.define(eq=False)
class Recorder:
    """Layers of one task that plugins requested, and the hooks that do it.

    Attributes:
        extractor: Extractor of the task.
        head: Its head.
        idle: Name of the task if its head does not run, for lack of labels; else None.
        requested: By instance, names of layers.
    """

    extractor: nn.Module
    head: nn.Module
    idle: str | None = None
    requested: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    _during: Pass = attrs.field(factory=Pass)
    _notes: dict[str, Notes] = attrs.field(factory=dict)
    _hooks: list[tuple[nn.Module, RemovableHandle]] = attrs.field(factory=list)
    _switched: list[nn.Module] = attrs.field(factory=list)

    def request(self, instance: str, names: Iterable[str]) -> None:
        """Add layers that an instance requests.

        Args:
            instance: Name of the plugin's instance.
            names: Paths of modules in the whole network.

        Raises:
            UnknownName: No layer has such a name.
            UsageError: It is part of a head that does not run.
        """
        for name in (wanted := tuple(dict.fromkeys(names))):
            if not self.modules(name):
                raise UnknownName(self._unknown(name), subject=name)
            if self.idle is not None and not _submodules(self.extractor, name):
                raise UsageError(
                    f"The layer {name!r} cannot be recorded: it lies in the head of task {self.idle!r}, which has no "
                    "labels, so that its head does not run. Ask for layers of the extractor.",
                    subject=name,
                )
        self.requested[instance] = tuple(dict.fromkeys((*self.requested.get(instance, ()), *wanted)))

    def modules(self, name: str) -> list[nn.Module]:
        """Return the modules of that path: one, or one of each part for a container that the cut divides."""
        return list(dict.fromkeys(_submodules(self.extractor, name) + _submodules(self.head, name)))

    @property
    def notes(self) -> dict[str, Notes]:
        """The notes of every layer that some instance requested."""
        for names in self.requested.values():
            for name in names:
                self._notes.setdefault(name, Notes(name, self._during))
        return self._notes

    def follow(self, instances: Iterable[str]) -> LayerRecording | None:
        """Record the layers that these instances requested, and no others; return None where there are none."""
        self.close()
        names = {instance: self.requested[instance] for instance in instances if instance in self.requested}
        if not any(names.values()):
            return None
        aliases: dict[str, str] = {}
        for name in dict.fromkeys(name for wanted in names.values() for name in wanted):
            aliases[name] = self._attach(name)
        for part in (self.extractor, self.head):
            for module in part.modules():
                if getattr(module, "inplace", None) is True:
                    module.inplace = False  # type: ignore[assignment]
                    self._switched.append(module)
        notes = {name: self.notes[name] for name in dict.fromkeys(aliases.values())}
        return LayerRecording(names, notes, aliases, self._during)

    def close(self) -> None:
        """Remove hooks and notes from the modules."""
        self._during.open = False
        for module, hook in self._hooks:
            hook.remove()
            module.__dict__.pop("_layer_notes", None)
        self._hooks.clear()
        for activation in self._switched:
            activation.inplace = True  # type: ignore[assignment]
        self._switched.clear()
        for notes in self._notes.values():
            notes.calls = []

    def _attach(self, name: str) -> str:
        """Put hooks on a layer; return the name of its notes, which may be another name of it."""
        known_name = name
        for module in self.modules(name):
            notes = module.__dict__.get("_layer_notes")
            if notes is not None:
                known_name = notes.name
                continue
            module.__dict__["_layer_notes"] = self.notes[name]
            self._hooks.append((module, module.register_forward_hook(_note, with_kwargs=True)))
        return known_name

    def dry_run(self, shape: tuple[int, ...], precision: Precision) -> None:
        """Run a few images through the network to find the recorded tensors that are overwritten, and copy those.

        Args:
            shape: Shape of an image, ``(channels, height, width)``.
            precision: Precision of the run.

        Raises:
            UsageError: A layer cannot be recorded.
        """
        entered: list[tuple[Any, int]] = []
        counted: list[tuple[Notes, int, Tensor, int]] = []

        def before(module: nn.Module, arguments: Any, keywords: Any) -> None:
            input = first_of(arguments, keywords)
            entered.append((input, input._version if isinstance(input, Tensor) else 0))

        def after(module: nn.Module, arguments: Any, output: Any) -> None:
            input, version = entered.pop()
            notes: Notes = module._layer_notes  # type: ignore[assignment]
            if isinstance(input, Tensor) and input._version != version:
                raise UsageError(
                    f"The layer {notes.name!r} cannot be recorded: it writes into its own input. Ask for layers inside "
                    "of it.",
                    subject=notes.name,
                )
            if isinstance(input, Tensor) and isinstance(output, Tensor):
                counted.extend(
                    (notes, place, tensor, tensor._version) for place, tensor in enumerate((input, output))
                )

        images = self.images(IMAGES, shape)
        with self.unchanged(), precision.autocast(), ExitStack() as hooks:
            self.extractor.train()
            self.head.train()
            for module in (module for name in self.notes for module in self.modules(name)):
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(after).remove)
            self.calls(images, self.extractor, self.head)
        for notes, place, tensor, version in counted:
            if tensor._version != version:
                notes.copied = (True, notes.copied[1]) if place == 0 else (notes.copied[0], True)

    def images(self, count: int, shape: tuple[int, ...]) -> Tensor:
        """Return noise to try the network with, ``(count, *shape)``.

        Args:
            count: Images.
            shape: Shape of one image.

        Returns:
            On the device of the extractor; always the same numbers.
        """
        first = next(self.extractor.parameters(), torch.empty(0))
        draw = torch.Generator().manual_seed(0)
        return torch.randn((count, *shape), generator=draw).to(first.device, first.dtype)

    def calls(self, images: Tensor, *parts: nn.Module) -> Layers:
        """Return the calls of all requested layers when ``images`` pass through ``parts``.

        Args:
            images: Input of the first part.
            parts: Called one after the other.
        """
        recording = self.follow(self.requested)
        if recording is None:
            return {}
        recording.begin()
        for part in parts:
            images = part(images)
        return recording.end()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore random states, modes and all buffers afterwards, and leave no hook."""
        parts = (self.extractor, self.head)
        modes = [(module, module.training) for part in parts for module in part.modules()]
        buffers = [(buffer, buffer.detach().clone()) for part in parts for buffer in part.buffers()]
        try:
            with preserved(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a network may warn in each of its steps, where it belongs
                yield
        finally:
            self.close()
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    def _unknown(self, name: object) -> str:
        known = dict.fromkeys(
            path for part in (self.extractor, self.head) for path, _ in part.named_modules() if path
        )
        close = near(name, known, 3, 0.5)
        hint = f"Did you mean {', '.join(map(repr, close))}?" if close else "Use names of its state dict."
        return f"The network has no layer {name!r} that could be recorded. {hint}"
