"""Find where a network can be cut: tensors that cross after every module, parameters and FLOPs of each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from compatkit.adapters.cutting.crossing import MAX_TENSORS
from compatkit.adapters.cutting.cut import CANONICAL
from compatkit.adapters.cutting.proof import restored_state
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.functionmode import FunctionWatch
from compatkit.errors import CutError

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


@attrs.frozen
class CutPoint:
    """A possible cut of a network.

    Attributes:
        name: Module path, or ``"forward_features"``.
        module: Class of the module.
        crossing: Name and shape for one image of every tensor that crosses, the module's own first.
        parameters: Number of parameters before and after the cut.
        flops: Floating-point operations for one image before and after the cut; a multiplication and an addition
            count as two.
        own: Whether the module's own output alone crosses.
        same_as: Outermost module with the same end, if that is another one; else empty.
        approach: Approach of the cut, as in a blueprint; empty if it was not tried.
        refused: Reason why the network cannot be cut here, else empty.
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
        """Return the cells of a table: name, module, shapes, parameters and FLOPs of both sides, approach."""
        shapes = ", ".join("x".join(map(str, shape)) for _, shape in self.crossing)
        others = [name for name, _ in self.crossing if name != self.name]
        if others:
            shapes += f" (also of {', '.join(dict.fromkeys(others))})"
        approach = "refused" if self.refused else self.approach or ("declared" if others else "")
        return (
            self.name,
            self.module,
            shapes,
            f"{self.parameters[0]:,}",
            f"{self.parameters[1]:,}",
            _short(self.flops[0]),
            _short(self.flops[1]),
            approach,
        )


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)


def find_cut_points(whole: nn.Module, image: tuple[int, ...]) -> list[CutPoint]:
    """Return a cut point for each called module, in the order in which the modules finish.

    One forward pass of two images in eval mode is recorded. It shows neither numbers that code reads from a tensor nor
    code that cannot be traced; cutting detects both.

    Args:
        whole: Network; modes and buffers are restored.
        image: (channels, height, width) of the images.

    Raises:
        CutError: The network does not take such images.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports triton

    names: dict[nn.Module, str] = {}
    for name, module in whole.named_modules():
        names.setdefault(module, name)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={attention: _attention})
    recorder = _Recorder(whole, counter)
    hooks = [module.register_forward_hook(recorder.end_hook(name)) for module, name in names.items() if name]
    if hasattr(whole, "forward_features"):
        recorder.wrap_forward_features(whole)
    try:
        with restored_state(whole), torch.no_grad():
            whole.eval()
            images = signal((2, *image))
            recorder.add_tensor(images, "image")
            with counter, recorder:
                recorder.result = {id(leaf) for leaf in tree_leaves(_forward(whole, images))}
    finally:
        vars(whole).pop("forward_features", None)
        for hook in hooks:
            hook.remove()
    kinds = {name: type(module).__name__ for module, name in names.items()}
    return recorder.points(kinds)


def _forward(whole: nn.Module, images: Tensor) -> Any:
    try:
        return whole(images)
    except Exception as error:  # foreign code refuses images in its own way
        raise CutError(
            f"{type(whole).__name__} does not take images of {' x '.join(map(str, images.shape[1:]))}: {error}. Leave "
            "size out for its own."
        ) from error


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    from torch.utils.flop_counter import sdpa_flop_count

    return sdpa_flop_count(query, key, value)


class _Recorder(FunctionWatch):
    """Record when each tensor that depends on the image is created and last used, as numbers of operations."""

    def __init__(self, whole: nn.Module, counter: FlopCounterMode) -> None:
        super().__init__()
        self.counter = counter
        self.clock = 0
        self.created: dict[int, int] = {}
        self.last_used: dict[int, int] = {}
        self.source: dict[int, str] = {}
        self.result: set[int] = set()
        self.operations = 0
        self.ends: dict[str, list[tuple[int, Any, int]]] = {}
        """Time, output and FLOPs so far of every call, by module path."""
        self.end_states: dict[str, tuple[int, frozenset[int]]] = {}
        """Operations so far and ids of the output tensors, by module path."""
        self.alive: list[Any] = []  # keeps ids unique
        self.counts = {id(parameter): parameter.numel() for parameter in whole.parameters()}
        self.spans: dict[int, tuple[int, int]] = {}
        """First and last use of every parameter."""

    def add_tensor(self, tensor: Tensor, source: str) -> None:
        if id(tensor) not in self.created:
            self.alive.append(tensor)
            self.created[id(tensor)] = self.clock
            self.source[id(tensor)] = source

    def end_hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.end(name, output)

        return hook

    def end(self, name: str, output: Any) -> None:
        self.clock += 1
        self.alive.append(output)
        self.ends.setdefault(name, []).append((self.clock, output, self.counter.get_total_flops()))
        produced = [
            id(leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and id(leaf) in self.created
        ]
        self.end_states[name] = self.operations, frozenset(produced)
        for key in produced:
            self.source[key] = name

    def wrap_forward_features(self, whole: nn.Module) -> None:
        """Record the end of ``forward_features`` like that of a module."""
        method = whole.forward_features

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            output = method(*args, **kwargs)  # type: ignore[operator]
            self.end(CANONICAL, output)
            return output

        vars(whole)["forward_features"] = wrapper

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.clock += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **kwargs)
        for tensor in tensors:
            if id(tensor) in self.counts:
                first, _ = self.spans.get(id(tensor), (self.clock, 0))
                self.spans[id(tensor)] = (first, self.clock)
        inputs = [tensor for tensor in tensors if id(tensor) in self.created]
        for tensor in inputs:
            self.last_used[id(tensor)] = self.clock
        if inputs:
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.operations += bool(outputs)
            for output in outputs:
                self.add_tensor(output, getattr(func, "__name__", "operation"))
        return result

    def points(self, kinds: Mapping[str, str]) -> list[CutPoint]:
        """Return all modules, and ``forward_features``, in the order in which they finish."""
        points_by_end = [
            (calls[0][0], self._point(name, kinds.get(name, "method"))) for name, calls in self.ends.items()
        ]
        ordered = [point for _, point in sorted(points_by_end, key=lambda item: item[0])]
        outermost = {self.end_states[point.name]: point.name for point in ordered if point.name != CANONICAL}
        names = [outermost.get(self.end_states[point.name], "") for point in ordered]
        return [
            point if point.name in (CANONICAL, name) else attrs.evolve(point, same_as=name)
            for point, name in zip(ordered, names, strict=True)
        ]

    def _point(self, name: str, kind: str) -> CutPoint:
        calls = self.ends[name]
        end, output, flops = calls[0]
        own = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and id(leaf) in self.created]
        own_ids = {id(value) for value in own}
        others = {
            id(value): value
            for value in self.alive
            if isinstance(value, Tensor)
            and id(value) not in own_ids
            and self.created.get(id(value), end + 1) <= end < self.last_used.get(id(value), 0)
        }.values()
        shapes = [(name, tuple(value.shape)) for value in own]
        shapes += [(self.source[id(value)], tuple(value.shape)) for value in others]
        crossing = tuple((source, shape[1:] if shape[:1] == (2,) else shape) for source, shape in shapes)
        left = sum(self.counts[value] for value, (first, _) in self.spans.items() if first <= end)
        total = self.counter.get_total_flops()
        return CutPoint(
            name,
            kind,
            crossing,
            (left, sum(self.counts.values()) - left),
            (flops // 2, (total - flops) // 2),
            not others,
            refused=self._refusal(calls, crossing, own_ids, end),
        )

    def _refusal(self, calls: list[Any], crossing: tuple[Any, ...], own_ids: set[int], end: int) -> str:
        if len(calls) > 1:
            return f"called {len(calls)} times"
        if own_ids & self.result or not any(self.last_used.get(key, 0) > end for key in own_ids):
            return "no later code uses its output"
        if len(crossing) > MAX_TENSORS:
            return f"{len(crossing)} tensors cross; at most {MAX_TENSORS} may"
        shared = sum(1 for first, last in self.spans.values() if first <= end < last)
        return f"{shared} parameters are used on both sides" if shared else ""
