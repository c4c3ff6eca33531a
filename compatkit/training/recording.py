"""Layer records: what layers took and gave in the target pass of a step, for the plugins that ask for it.

A hook on each layer that was asked for notes its input and output while the objective runs the network on the batch,
and at no other time. Hooks are there only in steps in which a plugin that asked for them is active.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from compatkit.errors import UnknownName, UsageError, type_of


class LayerCall(NamedTuple):
    """One call of a layer in the target pass.

    Attributes:
        input: Its first argument, ``(batch, ...)``.
        output: What it gave, ``(batch, ...)``, also where an in-place activation follows.
        layer: What was called.
    """

    input: Tensor
    output: Tensor
    layer: nn.Module


Layers = Mapping[str, Sequence[LayerCall]]
NOTHING: Layers = {}


class Pass:
    """Whether the target pass of a task is running, shared by all that note what its layers do."""

    def __init__(self) -> None:
        """See the class."""
        self.open = False
        self.gradients = False


class Notes:
    """What one layer did since the pass began; the layer holds it as ``_layer_notes``.

    Attributes:
        name: Path of the layer in the whole network.
        during: The pass that counts.
        calls: In their order, None before the first.
        copied: By place in a call, whether the tensor is overwritten later and must be copied.
        rows: By place in a call, whether its first dimension is that of the batch.
    """

    def __init__(self, name: str, during: Pass) -> None:
        """See the class."""
        self.name, self.during = name, during
        self.calls: list[LayerCall] | None = None
        self.copied: tuple[bool, bool] = (False, False)
        self.rows: tuple[bool, bool] = (True, True)

    def add(self, layer: nn.Module, given: Any, output: Any) -> None:
        """Note one call.

        Raises:
            UsageError: It cannot be noted.
        """
        if not isinstance(given, Tensor) or not isinstance(output, Tensor):
            raise UsageError(
                f"The layer {self.name!r} cannot be recorded: it takes {type_of(given)} and gives "
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
            given = given.clone()
        if self.copied[1]:
            output = output.clone()
        call = LayerCall(given, output, layer)
        if self.calls is None:
            self.calls = [call]
        else:
            self.calls.append(call)


def _note(module: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
    """Be the hook of every recorded layer: one function for all, which compiled graphs of other tasks share."""
    notes: Notes = module._layer_notes  # type: ignore[assignment]
    if notes.during.open:
        notes.add(module, first_of(arguments, named), output)


def first_of(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return the first argument of a call, None where there is none."""
    return arguments[0] if arguments else next(iter(named.values()), None)


class Recording:
    """The layers of one task that are recorded in some of its steps.

    Attributes:
        names: By instance, what it asked for.
        notes: Of each layer, by name; one of several names of a layer has them.
        aliases: From every name to the one that has the notes.
    """

    def __init__(
        self,
        names: Mapping[str, tuple[str, ...]],
        notes: Mapping[str, Notes],
        aliases: Mapping[str, str],
        during: Pass,
    ) -> None:
        """See the class; made by ``Recorder.follow``."""
        self.names, self.notes, self.aliases, self._during = names, notes, aliases, during

    def begin(self) -> None:
        """Note from now on."""
        self._during.gradients = torch.is_grad_enabled()
        self._during.open = True

    def narrow(self, views: int) -> None:
        """Keep of all calls so far the batch alone, the first of ``views`` equal parts that went through together."""
        for notes in self.notes.values():
            if notes.calls is not None:
                notes.calls = [_first(one, notes, views) for one in notes.calls]

    def end(self) -> Layers:
        """Stop; return the calls of every layer by name."""
        self._during.open = False
        found: dict[str, Sequence[LayerCall]] = {}
        for name, notes in self.notes.items():
            found[name], notes.calls = notes.calls or (), None
        return found

    def of(self, instance: str, found: Layers) -> Layers:
        """Return what an instance asked for, out of all."""
        return {name: found[self.aliases[name]] for name in self.names.get(instance, ())}


def _has(part: nn.Module, name: str) -> bool:
    try:
        part.get_submodule(name)
    except AttributeError:
        return False
    return True


def _first(call: LayerCall, notes: Notes, views: int) -> LayerCall:
    given, output = call.input, call.output
    if notes.rows[0]:
        given = given.narrow(0, 0, len(given) // views)
    if notes.rows[1]:
        output = output.narrow(0, 0, len(output) // views)
    return LayerCall(given, output, call.layer)


@attrs.define(eq=False)
class Recorder:
    """What plugins asked to be recorded of one task, and the hooks that do it.

    Attributes:
        extractor: Layers are looked for here,
        head: and here.
        idle: Name of the task whose head does not run, for it has no labels; None where it does.
        asked: By instance, names of layers.
        switched: Activations that would overwrite something recorded, and work on a copy meanwhile.
    """

    extractor: nn.Module
    head: nn.Module
    idle: str | None = None
    asked: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    switched: tuple[nn.Module, ...] = ()
    _during: Pass = attrs.field(factory=Pass)
    _notes: dict[str, Notes] = attrs.field(factory=dict)
    _hooks: list[tuple[nn.Module, RemovableHandle]] = attrs.field(factory=list)

    def ask(self, instance: str, names: Iterable[str]) -> None:
        """Take in what an instance wants.

        Raises:
            UnknownName: No layer has such a name.
            UsageError: It lies in a head that does not run.
        """
        for name in (wanted := tuple(dict.fromkeys(names))):
            if not name or not self.modules(name):
                raise UnknownName(self._unknown(name), subject=name)
            if self.idle is not None and not _has(self.extractor, name):
                raise UsageError(
                    f"The layer {name!r} cannot be recorded: it lies in the head of task {self.idle!r}, which has no "
                    "labels, so that its head does not run. Ask for layers of the extractor.",
                    subject=name,
                )
        self.asked[instance] = tuple(dict.fromkeys((*self.asked.get(instance, ()), *wanted)))

    def modules(self, name: str) -> list[nn.Module]:
        """Return the modules of that path: one, or for a container whose layers lie on both sides, one of each."""
        found = [part.get_submodule(name) for part in (self.extractor, self.head) if _has(part, name)]
        return list({id(one): one for one in found}.values())

    @property
    def notes(self) -> dict[str, Notes]:
        """Of every layer that some instance asked for."""
        for name in (name for names in self.asked.values() for name in names):
            self._notes.setdefault(name, Notes(name, self._during))
        return self._notes

    def follow(self, instances: Iterable[str]) -> Recording | None:
        """Record what these instances asked for, and nothing else; return None where that is nothing."""
        self.close()
        names = {one: self.asked[one] for one in instances if one in self.asked}
        if not any(names.values()):
            return None
        aliases: dict[str, str] = {}
        for name in dict.fromkeys(name for wanted in names.values() for name in wanted):
            aliases[name] = self._attach(name)
        for one in self.switched:
            one.inplace = False  # type: ignore[assignment]
        kept = {name: self.notes[name] for name in dict.fromkeys(aliases.values())}
        return Recording(names, kept, aliases, self._during)

    def close(self) -> None:
        """Leave no trace in the modules."""
        self._during.open = False
        for module, hook in self._hooks:
            hook.remove()
            module.__dict__.pop("_layer_notes", None)
        self._hooks.clear()
        for one in self.switched:
            one.inplace = True  # type: ignore[assignment]
        for one in self._notes.values():
            one.calls = None

    def _attach(self, name: str) -> str:
        """Put hooks on a layer; return the name that it is recorded by, which another name of it may have."""
        kept = name
        for module in self.modules(name):
            there = module.__dict__.get("_layer_notes")
            if there is not None:
                kept = there.name
                continue
            module.__dict__["_layer_notes"] = self.notes[name]
            self._hooks.append((module, module.register_forward_hook(_note, with_kwargs=True)))
        return kept

    def _unknown(self, name: object) -> str:
        known = dict.fromkeys(
            path for part in (self.extractor, self.head) for path, _ in part.named_modules() if path
        )
        near = difflib.get_close_matches(str(name), list(known), 3, 0.5)
        hint = f"Did you mean {', '.join(map(repr, near))}?" if near else "Use names of its state dict."
        return f"The network has no layer {name!r} that could be recorded. {hint}"
