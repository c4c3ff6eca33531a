"""Cuts that were made before, so that a part is rebuilt without tracing its network again.

A cut is remembered in this process, and traced ones as plain data in the user's cache folder too: names of modules and
tensors, and which node takes what. A stored graph may only call the network's own modules and the tensor operations
listed here. A file that is damaged, or was made for another network, version or cut, is ignored and written anew.
A remembered proof is bound to the cut that it was made with, so a part whose stored cut changed runs its probe again.
Whoever may write all of the cache folder can still write a proof as well.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import operator
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from compatkit.adapters.builders import BUILDERS, BUILT_IN
from compatkit.adapters.cutting.cut import CANONICAL, Sides, sides_of
from compatkit.adapters.cutting.ownership import Part, state_of
from compatkit.adapters.cutting.parts import TracedSide, compiled, require_shape
from compatkit.adapters.cutting.planning import image_of
from compatkit.contracts.contract import Blueprint
from compatkit.foundation.cache import above
from compatkit.registry import disk as durable

FORMAT = 1
"""Counts up whenever the same cut is stored in another way, or made otherwise."""
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "cat": torch.cat,
    "dropout": F.dropout,
    "flatten": torch.flatten,
    "floordiv": operator.floordiv,
    "getitem": operator.getitem,
    "mul": operator.mul,
    "relu": F.relu,
    "require_shape": require_shape,
    "shape": getattr,
    "sub": operator.sub,
    "truediv": operator.truediv,
}
"""What a stored graph may call, by the name that stands for it; ``shape`` is ``getattr(x, "shape")`` and no other."""
METHODS = frozenset(
    (
        *("add", "chunk", "clone", "contiguous", "expand", "flatten", "max", "mean", "mul", "permute"),
        *("reshape", "size", "squeeze", "sum", "transpose", "unsqueeze", "view"),
    )
)
"""Methods of tensors that a stored graph may call."""
LIBRARIES = ("compatkit", "timm", "torch", "torchvision")
"""Whose code has a version; a cut of other code is not stored, as it may be edited."""
MOST = 256
"""Cuts that a process remembers; the oldest goes first."""
STORED = 512
"""Cuts that the cache folder keeps; the oldest file goes first."""
LONGEST = 2**24
"""Bytes that a stored cut may have; those of the largest networks take some hundred thousand."""

_NAMES = {function: name for name, function in FUNCTIONS.items()}
_known: dict[tuple[Any, ...], Sides] = {}
_anew = threading.local()


class _NotPlain(Exception):
    """A graph is not made of plain data, or stored data is no graph of the network."""


def remembered_sides(whole: nn.Module, blueprint: Blueprint) -> Sides:
    """Return how the parts of a blueprint's network are made, from an earlier cut where there was one.

    Args:
        whole: The network of the blueprint.
        blueprint: Says where and how to cut; networks of plugins, whose code has no version, are cut anew each time.

    Raises:
        CutError: As for ``sides_of``.
        UnknownName: As for ``sides_of``.
    """
    cut = functools.partial(sides_of, whole, blueprint.split, blueprint.approach, image_of(blueprint))
    if blueprint.builder not in BUILT_IN:
        return cut()
    traced = _traced_modules(whole, blueprint.split)
    text = _description(blueprint, traced)
    key = (text, *(type(module) for _, module in traced))
    anew = getattr(_anew, "on", False)
    sides = None if anew else _known.get(key)
    if sides is None:
        stored = blueprint.approach in ("fx", "declared") and all(
            type(module).__module__.partition(".")[0] in LIBRARIES for _, module in traced
        )
        sides = _read(text, whole) if stored and not anew else None
        if sides is None:
            sides = cut()
            if stored:
                _write(text, sides)
        while len(_known) >= MOST:
            _known.pop(next(iter(_known)), None)
        _known[key] = sides
    return sides


@contextlib.contextmanager
def cut_anew() -> Iterator[None]:
    """Believe no remembered or stored cut inside, in this thread; what is cut takes its place."""
    before = getattr(_anew, "on", False)
    _anew.on = True
    try:
        yield
    finally:
        _anew.on = before


def forget() -> None:
    """Forget the cuts that this process remembers; files stay."""
    _known.clear()


def _traced_modules(whole: nn.Module, split: str) -> list[tuple[str, nn.Module]]:
    """Return the modules whose code is traced, the whole network first."""
    steps = [] if split == CANONICAL else split.split(".")[:-1]
    found, holder = [("", whole)], whole
    for step in steps:
        inner = holder._modules.get(step)
        if inner is None:
            break  # cutting says what is wrong
        found.append((step, inner))
        holder = inner
    return found


def _description(blueprint: Blueprint, traced: list[tuple[str, nn.Module]]) -> str:
    """Return all that a cut depends on: blueprint, versions, and the settings that the traced code reads."""
    settings = [
        [
            step,
            type(module).__qualname__,
            list(module._modules),
            {
                name: repr(value)
                for name, value in vars(module).items()
                if name != "training" and isinstance(value, bool | int | float | str | None)
            },
        ]
        for step, module in traced
    ]
    cut = [blueprint.builder, blueprint.model, dict(blueprint.kwargs), blueprint.split, blueprint.approach]
    return json.dumps(
        [FORMAT, _versions(), BUILDERS[blueprint.builder].library(), cut, blueprint.traced_size, settings],
        sort_keys=True,
        default=list,
    )


@functools.cache
def _versions() -> list[str]:
    return [version("compatkit"), torch.__version__]


def _file(text: str) -> Path:
    return above() / "cuts" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _write(text: str, sides: Sides) -> None:
    """Store a cut where it is plain data and the cache folder can be written; nothing depends on it.

    The folder is made by registries. Where there is none, as for an exported file alone, nothing is left behind.
    """
    if not above().is_dir():
        return
    try:
        body = json.dumps([text, {side: _plain_side(one) for side, one in sides.items()}]).encode()
    except _NotPlain:
        return
    place = _file(text)
    with contextlib.suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            os.replace(draft, place)
        except OSError:
            os.unlink(draft)
            raise
        kept = sorted(place.parent.glob("*.json"), key=lambda one: one.stat().st_mtime_ns, reverse=True)
        for old in kept[STORED:]:
            old.unlink()


def _read(text: str, whole: nn.Module) -> Sides | None:
    """Return a stored cut; None where there is none that is whole and of this network."""
    try:
        found_file = durable.read(_file(text), None, limit=LONGEST)  # waits at no pipe, follows no link
        digest, _, body = (b"" if found_file is None else found_file[0]).partition(b"\n")
        if digest.decode() != hashlib.sha256(body).hexdigest():
            return None
        asked, sides = json.loads(body)
        if asked != text:
            return None
        modules, tensors = dict(whole.named_modules(remove_duplicate=False)), state_of(whole)
        found: dict[Part, TracedSide] = {
            "extractor": _side(sides["extractor"], whole, modules, tensors),
            "head": _side(sides["head"], whole, modules, tensors),
        }
    except Exception:  # whatever is wrong with the file, the cut is made anew
        return None
    return found


def _plain_side(side: Any) -> dict[str, Any]:
    if side.constants:
        raise _NotPlain
    return {
        "modules": list(side.modules),
        "tensors": list(side.tensors),
        "names": list(side.names),
        "graphs": [[_plain_node(node) for node in graph.nodes] for graph in side.graphs],
    }


def _plain_node(node: fx.Node) -> list[Any]:
    """Return a node as its kind, what it calls, and its arguments."""
    target = node.target
    if node.op == "call_function":
        if target not in _NAMES or (target is getattr and node.args[1:] != ("shape",)):
            raise _NotPlain
        target = _NAMES[target]  # type: ignore[index]
    elif node.op == "call_method" and target not in METHODS:
        raise _NotPlain
    return [node.name, node.op, target, _plain(node.args), _plain(node.kwargs)]


def _plain(value: Any) -> Any:
    """Return an argument as JSON values; what JSON lacks is a mapping with one key, its kind."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, slice):
        return {"slice": [_plain(one) for one in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": None}
    if isinstance(value, tuple):
        return {"tuple": [_plain(one) for one in value]}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return {"dict": {name: _plain(one) for name, one in value.items()}}
    raise _NotPlain


def _side(
    stored: Mapping[str, Any], whole: nn.Module, modules: Mapping[str, nn.Module], tensors: Mapping[str, Any]
) -> TracedSide:
    """Return a side from stored data, every name of which the network must have."""
    if not (set(stored["modules"]) <= modules.keys() and set(stored["tensors"]) <= tensors.keys()):
        raise _NotPlain
    train, evaluate = (_graph(nodes, modules, tensors) for nodes in stored["graphs"])
    runs = compiled(whole, train), compiled(whole, evaluate)
    placed, direct, names = (tuple(stored[what]) for what in ("modules", "tensors", "names"))
    return TracedSide(placed, direct, {}, names, (train, evaluate), runs)


def _graph(nodes: list[Any], modules: Mapping[str, nn.Module], tensors: Mapping[str, Any]) -> fx.Graph:
    """Return a graph from stored nodes; each may call only what is listed here, and what the network has."""
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}
    for name, op, target, stored_args, stored_kwargs in nodes:
        args, kwargs = _value(stored_args, made), _value(stored_kwargs, made)
        allowed: Mapping[str, bool] = {
            "placeholder": target.isidentifier(),
            "call_module": target in modules,
            "get_attr": target in tensors,
            "call_method": target in METHODS,
            "call_function": target in FUNCTIONS and (target != "shape" or args[1:] == ("shape",)),
            "output": target == "output",
        }
        if not (allowed[op] and name.isidentifier() and all(key.isidentifier() for key in kwargs)):
            raise _NotPlain
        called = FUNCTIONS[target] if op == "call_function" else target
        made[name] = graph.create_node(op, called, args, kwargs, name)
    graph.lint()
    return graph


def _value(stored: Any, made: Mapping[str, fx.Node]) -> Any:
    """Return an argument from its JSON values."""
    if isinstance(stored, list):
        return [_value(one, made) for one in stored]
    if not isinstance(stored, dict):
        return stored
    ((kind, inner),) = stored.items()
    if kind == "node":
        return made[inner]
    if kind == "dict":
        return {name: _value(one, made) for name, one in inner.items()}
    if kind == "ellipsis":
        return ...
    items = [_value(one, made) for one in inner]
    return {"tuple": tuple, "slice": lambda three: slice(*three)}[kind](items)
