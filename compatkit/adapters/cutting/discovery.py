"""Find where a network can be cut: what crosses behind every module, and what lies on each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from compatkit.adapters.cutting.crossing import MOST
from compatkit.adapters.cutting.cut import CANONICAL
from compatkit.adapters.cutting.proof import unchanged
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.functionmode import FunctionWatch
from compatkit.errors import CutError


@attrs.frozen
class CutPoint:
    """A place where a network can be cut, or why it cannot.

    Attributes:
        name: Module path, or ``"forward_features"``.
        module: Class of the module.
        crossing: Name and shape for one image of every tensor that crosses, the module's own first.
        parameters: Counts before and behind the cut.
        flops: Floating-point operations for one image before and behind the cut; a multiplication and an addition
            count as two.
        own: Whether all that crosses is what the module itself gives.
        same_as: The outermost module that ends at the same place, where that is another one.
        approach: How the cut is made, as a blueprint records it; empty where it was not tried.
        refused: Why the network cannot be cut here, else empty.
    """

    name: str
    module: str
    crossing: tuple[tuple[str, tuple[int, ...]], ...]
    parameters: tuple[int, int]
    flops: tuple[int, int]
    own: bool
    same_as: str = ""
    approach: str = ""
    refused: str = ""

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table: name, module, shapes, parameters and FLOPs of both sides, way."""
        gives = ", ".join("x".join(map(str, shape)) for _, shape in self.crossing)
        others = [name for name, _ in self.crossing if name != self.name]
        if others:
            gives += f" (also of {', '.join(dict.fromkeys(others))})"
        way = "refused" if self.refused else self.approach or ("declared" if others else "")
        return (
            self.name,
            self.module,
            gives,
            f"{self.parameters[0]:,}",
            f"{self.parameters[1]:,}",
            _short(self.flops[0]),
            _short(self.flops[1]),
            way,
        )


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)


def watched(whole: nn.Module, image: tuple[int, ...]) -> list[CutPoint]:
    """Return what a cut after each called module would mean, in the order in which the modules finish.

    One forward pass of two images in eval mode is watched. Numbers that code reads off a tensor are not seen, and
    neither is whether the code can be traced: cutting itself finds those.

    Args:
        whole: The network; modes and buffers are as before afterwards.
        image: (channels, height, width) of the images.
    """
    names: dict[nn.Module, str] = {}
    for name, module in whole.named_modules():
        names.setdefault(module, name)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={attention: _attention})
    watch = _Watch(whole, counter)
    hooks = [module.register_forward_hook(watch.finished(name)) for module, name in names.items() if name]
    if hasattr(whole, "forward_features"):
        watch.follow_features(whole)
    try:
        with unchanged(whole), torch.no_grad():
            whole.eval()
            images = signal((2, *image))
            watch.made(images, "image")
            with counter, watch:
                watch.result = {id(leaf) for leaf in tree_leaves(_forward(whole, images))}
    finally:
        vars(whole).pop("forward_features", None)
        for hook in hooks:
            hook.remove()
    kinds = {name: type(module).__name__ for module, name in names.items()}
    return watch.points(kinds)


def _forward(whole: nn.Module, images: Tensor) -> Any:
    try:
        return whole(images)
    except Exception as error:  # foreign code refuses images in its own way
        raise CutError(
            f"{type(whole).__name__} does not take images of {' x '.join(map(str, images.shape[1:]))}: {error}. Leave "
            "size out for its own."
        ) from error


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


class _Watch(FunctionWatch):
    """Numbers every operation; notes when each tensor that depends on the image is made and last used."""

    def __init__(self, whole: nn.Module, counter: FlopCounterMode) -> None:
        super().__init__()
        self.counter = counter
        self.clock = 0
        self.born: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.source: dict[int, str] = {}
        self.result: set[int] = set()
        self.operations = 0
        self.ends: dict[str, list[tuple[int, Any, int]]] = {}
        self.places: dict[str, tuple[int, frozenset[int]]] = {}
        """Where a module ends: operations before, and what it gives."""
        self.alive: list[Any] = []  # no id may be given twice
        self.counts = {id(parameter): parameter.numel() for parameter in whole.parameters()}
        self.spans: dict[int, tuple[int, int]] = {}
        """First and last use of every parameter."""

    def made(self, tensor: Tensor, source: str) -> None:
        if id(tensor) not in self.born:
            self.alive.append(tensor)
            self.born[id(tensor)] = self.clock
            self.source[id(tensor)] = source

    def finished(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.end(name, output)

        return hook

    def end(self, name: str, output: Any) -> None:
        self.clock += 1
        self.alive.append(output)
        self.ends.setdefault(name, []).append((self.clock, output, self.counter.get_total_flops()))
        produced = [
            id(leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and id(leaf) in self.born
        ]
        self.places[name] = self.operations, frozenset(produced)
        for key in produced:
            self.source[key] = name

    def follow_features(self, whole: nn.Module) -> None:
        """Note the end of ``forward_features`` like that of a module."""
        method = whole.forward_features

        def followed(*args: Any, **kwargs: Any) -> Any:
            output = method(*args, **kwargs)  # type: ignore[operator]
            self.end(CANONICAL, output)
            return output

        vars(whole)["forward_features"] = followed

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.clock += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **kwargs)
        for tensor in tensors:
            if id(tensor) in self.counts:
                first, _ = self.spans.get(id(tensor), (self.clock, 0))
                self.spans[id(tensor)] = (first, self.clock)
        inputs = [tensor for tensor in tensors if id(tensor) in self.born]
        for tensor in inputs:
            self.used[id(tensor)] = self.clock
        if inputs:
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.operations += bool(made)
            for leaf in made:
                self.made(leaf, getattr(func, "__name__", "operation"))
        return result

    def points(self, kinds: Mapping[str, str]) -> list[CutPoint]:
        """Return all modules, and ``forward_features``, in the order in which they finish."""
        points_by_end = [
            (calls[0][0], self._point(name, kinds.get(name, "method"))) for name, calls in self.ends.items()
        ]
        ordered = [point for _, point in sorted(points_by_end, key=lambda item: item[0])]
        outermost = {self.places[point.name]: point.name for point in ordered if point.name != CANONICAL}
        found_at = [outermost.get(self.places[point.name], "") for point in ordered]
        return [
            point if point.name in (CANONICAL, name) else attrs.evolve(point, same_as=name)
            for point, name in zip(ordered, found_at, strict=True)
        ]

    def _point(self, name: str, kind: str) -> CutPoint:
        calls = self.ends[name]
        end, output, flops = calls[0]
        own = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and id(leaf) in self.born]
        own_ids = {id(value) for value in own}
        others = {
            id(value): value
            for value in self.alive
            if isinstance(value, Tensor)
            and id(value) not in own_ids
            and self.born.get(id(value), end + 1) <= end < self.used.get(id(value), 0)
        }.values()
        shapes = [(name, tuple(value.shape)) for value in own]
        shapes += [(self.source[id(value)], tuple(value.shape)) for value in others]
        crossing = tuple((where, shape[1:] if shape[:1] == (2,) else shape) for where, shape in shapes)
        left = sum(self.counts[value] for value, (first, _) in self.spans.items() if first <= end)
        total = self.counter.get_total_flops()
        return CutPoint(
            name,
            kind,
            crossing,
            (left, sum(self.counts.values()) - left),
            (flops // 2, (total - flops) // 2),
            not others,
            refused=self._refused(calls, crossing, own_ids, end),
        )

    def _refused(self, calls: list[Any], crossing: tuple[Any, ...], own_ids: set[int], end: int) -> str:
        if len(calls) > 1:
            return f"called {len(calls)} times"
        if own_ids & self.result or not any(self.used.get(key, 0) > end for key in own_ids):
            return "nothing that it gives is used behind it"
        if len(crossing) > MOST:
            return f"{len(crossing)} tensors cross; at most {MOST} can be declared"
        shared = sum(1 for first, last in self.spans.values() if first <= end < last)
        return f"{shared} parameters are used on both sides" if shared else ""
