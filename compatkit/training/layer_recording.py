"""Record input and output of layers in the target pass of a step, for the plugins that request them.

A forward hook on each requested layer records its input and output while the objective runs the network on the batch.
Hooks are registered only in steps with an active plugin that requested them.

A later in-place write would change a recorded tensor. Activations with ``inplace=True`` therefore work on a copy while
layers are recorded. A dry run before the first step finds other in-place writes by torch's version counters; these
tensors are copied in each step.
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
    """Call of a layer in the target pass.

    Attributes:
        input: First argument, ``(batch, ...)``.
        output: Result, ``(batch, ...)``, before any in-place activation.
        layer: Module of the layer.
    """

    input: Tensor
    output: Tensor
    layer: nn.Module


Layers = Mapping[str, Sequence[LayerCall]]
NOTHING: Layers = {}


@attrs.define(eq=False)
class Pass:
    """State of the target pass of a task, shared by all its layers.

    Attributes:
        open: Whether the pass is running.
        gradients: Whether gradients are enabled.
    """

    open: bool = False
    gradients: bool = False


@attrs.define(eq=False)
class Notes:
    """Calls of a layer since the start of the pass; the layer's attribute ``_layer_notes``.

    Attributes:
        name: Path of the layer in the complete network.
        during: Pass to record.
        calls: Calls in order.
        copied: Whether input and output are overwritten later and must be copied.
        rows: Whether the first dimension of input and output is the batch.
    """

    name: str
    during: Pass
    calls: list[LayerCall] = attrs.field(factory=list)
    copied: tuple[bool, bool] = (False, False)
    rows: tuple[bool, bool] = (True, True)

    def add(self, layer: nn.Module, input: Any, output: Any) -> None:
        """Record a call.

        Args:
            layer: Called module.
            input: First argument of the call.
            output: Result of the call.

        Raises:
            UsageError: The call cannot be recorded.
        """
        if not isinstance(input, Tensor) or not isinstance(output, Tensor):
            input_type, output_type = type_of(input), type_of(output)
            reason = f"it takes {input_type} and returns {output_type}, not one tensor each. Request layers inside it."
            raise unrecordable(self.name, reason)
        if self.during.gradients and not torch.is_grad_enabled():
            raise unrecordable(
                self.name,
                "the network runs it without gradients, as reentrant gradient checkpointing does. Use timm's "
                "set_grad_checkpointing(), or torch.utils.checkpoint with use_reentrant=False.",
            )
        input = input.clone() if self.copied[0] else input
        self.calls.append(LayerCall(input, output.clone() if self.copied[1] else output, layer))

    def narrow(self, views: int) -> None:
        """Remove the rows of extra views from each call: all but the first of ``views`` equal parts."""

        def first(call: Tensor, rows: bool) -> Tensor:
            return call.narrow(0, 0, len(call) // views) if rows else call

        self.calls = [
            LayerCall(first(call.input, self.rows[0]), first(call.output, self.rows[1]), call.layer)
            for call in self.calls
        ]


def unrecordable(name: str, reason: str) -> UsageError:
    """Return the error for a layer that cannot be recorded.

    Args:
        name: Name of the layer.
        reason: Reason and remedy.
    """
    return UsageError(f"The layer {name!r} cannot be recorded: {reason}", subject=name)


def _note(module: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> None:
    """Record a call: forward hook of every recorded layer, one function that compiled graphs share."""
    notes: Notes = module._layer_notes  # type: ignore[assignment]
    if notes.during.open:
        notes.add(module, first_of(arguments, keywords), output)


def first_of(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the first argument of a call; None if there is none.

    Args:
        arguments: Positional arguments.
        keywords: Keyword arguments.
    """
    return arguments[0] if arguments else next(iter(keywords.values()), None)


@attrs.frozen(eq=False)
class LayerRecording:
    """Layers of a task that are recorded in some of its steps.

    Attributes:
        names: Requested layers by plugin instance.
        notes: Notes by layer; a layer with several names has one.
        aliases: Key of the notes, by each name of a layer.
    """

    names: Mapping[str, tuple[str, ...]]
    notes: Mapping[str, Notes]
    aliases: Mapping[str, str]
    _during: Pass

    def begin(self) -> None:
        """Start recording."""
        self._during.gradients = torch.is_grad_enabled()
        self._during.open = True

    def narrow(self, views: int) -> None:
        """Remove the rows of extra views from all calls so far; see ``Notes.narrow``."""
        for notes in self.notes.values():
            notes.narrow(views)

    def end(self) -> Layers:
        """Stop recording, and return the calls of every layer by name."""
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
    """Return the module of that path, or an empty list."""
    return [module for path, module in part.named_modules(remove_duplicate=False) if name and path == name]


@attrs.define(eq=False)
class Recorder:
    """Requested layers of a task, and their hooks.

    Attributes:
        extractor: Extractor of the task.
        head: Head of the task.
        idle: Name of the task if its head does not run, as it has no labels; else None.
        requested: Names of layers by plugin instance.
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
            names: Paths of modules in the complete network.

        Raises:
            UnknownName: No layer has such a name.
            UsageError: A layer is part of a head that does not run.
        """
        layers = tuple(dict.fromkeys(names))
        for name in layers:
            if not self.modules(name):
                raise UnknownName(self._unknown(name), subject=name)
            if self.idle is not None and not _submodules(self.extractor, name):
                raise unrecordable(
                    name,
                    f"it belongs to the head of task {self.idle!r}, which has no labels, so its head does not run. "
                    "Request layers of the extractor.",
                )
        self.requested[instance] = tuple(dict.fromkeys((*self.requested.get(instance, ()), *layers)))

    def modules(self, name: str) -> list[nn.Module]:
        """Return the modules of that path: one, or one of each part for a container that the cut divides."""
        return list(dict.fromkeys(_submodules(self.extractor, name) + _submodules(self.head, name)))

    @property
    def notes(self) -> dict[str, Notes]:
        """Notes of all requested layers."""
        for names in self.requested.values():
            for name in names:
                self._notes.setdefault(name, Notes(name, self._during))
        return self._notes

    def record(self, instances: Iterable[str]) -> LayerRecording | None:
        """Record the layers that these instances requested; return None if there are none."""
        self.close()
        names = {instance: self.requested[instance] for instance in instances if instance in self.requested}
        if not any(names.values()):
            return None
        aliases: dict[str, str] = {}
        for name in dict.fromkeys(name for layers in names.values() for name in layers):
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
        """Register hooks on a layer; return the name of its notes, which may be another name of the layer."""
        notes_name = name
        for module in self.modules(name):
            notes = module.__dict__.get("_layer_notes")
            if notes is not None:
                notes_name = notes.name
                continue
            module.__dict__["_layer_notes"] = self.notes[name]
            self._hooks.append((module, module.register_forward_hook(_note, with_kwargs=True)))
        return notes_name

    def dry_run(self, shape: tuple[int, ...], precision: Precision) -> None:
        """Find recorded tensors that the network overwrites by running it on a few images; they are copied in steps.

        Args:
            shape: Shape of an image, ``(channels, height, width)``.
            precision: Precision of the run.

        Raises:
            UsageError: A layer cannot be recorded.
        """
        inputs: list[tuple[Any, int]] = []
        recorded: list[tuple[Notes, int, Tensor, int]] = []

        def before(module: nn.Module, arguments: Any, keywords: Any) -> None:
            input = first_of(arguments, keywords)
            inputs.append((input, input._version if isinstance(input, Tensor) else 0))

        def after(module: nn.Module, arguments: Any, output: Any) -> None:
            input, version = inputs.pop()
            notes: Notes = module._layer_notes  # type: ignore[assignment]
            if isinstance(input, Tensor) and input._version != version:
                raise unrecordable(notes.name, "it writes into its own input. Request layers inside it.")
            if isinstance(input, Tensor) and isinstance(output, Tensor):
                recorded.extend(
                    (notes, side, tensor, tensor._version) for side, tensor in enumerate((input, output))
                )

        images = self.images(IMAGES, shape)
        with self.restored(), precision.autocast(), ExitStack() as hooks:
            self.extractor.train()
            self.head.train()
            for module in (module for name in self.notes for module in self.modules(name)):
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(after).remove)
            self.calls(images, self.extractor, self.head)
        for notes, side, tensor, version in recorded:
            if tensor._version != version:
                notes.copied = (True, notes.copied[1]) if side == 0 else (notes.copied[0], True)

    def images(self, count: int, shape: tuple[int, ...]) -> Tensor:
        """Return noise images, ``(count, *shape)``.

        Args:
            count: Number of images.
            shape: Shape of one image.

        Returns:
            Images on the device of the extractor; equal in every call.
        """
        first = next(self.extractor.parameters(), torch.empty(0))
        draw = torch.Generator().manual_seed(0)
        return torch.randn((count, *shape), generator=draw).to(first.device, first.dtype)

    def calls(self, images: Tensor, *parts: nn.Module) -> Layers:
        """Run modules on images; return the calls of all requested layers.

        Args:
            images: Input of the first part.
            parts: Modules to call one after the other.
        """
        recording = self.record(self.requested)
        if recording is None:
            return {}
        recording.begin()
        for part in parts:
            images = part(images)
        return recording.end()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore random states, modes and buffers on exit, and remove all hooks."""
        parts = (self.extractor, self.head)
        modes = [(module, module.training) for part in parts for module in part.modules()]
        buffers = [(buffer, buffer.detach().clone()) for part in parts for buffer in part.buffers()]
        try:
            with preserved(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the steps of the run repeat the warnings
                yield
        finally:
            self.close()
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    def _unknown(self, name: object) -> str:
        parts = self.extractor, self.head
        close = near(name, [path for part in parts for path, _ in part.named_modules() if path], 3, 0.5)
        hint = f"Did you mean {', '.join(map(repr, close))}?" if close else "Use names of its state dict."
        return f"The network has no layer {name!r} that could be recorded. {hint}"
