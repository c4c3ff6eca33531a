"""Bound what a blueprint and a probe may cost, because both may come from somebody else's file.

Building is bounded by the number of modules and by the bytes of tensors that are computed; parameters do not count, as
they are never written before the stored weights take their place. A run is bounded in proportion to the weights that it
uses: memory in use, bytes made in all, and operations. Every size is known before it is allocated: where a result may
be large, the call is made on the meta device first.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parameter import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from compatkit.adapters.initialization import NoDraws, without_draws
from compatkit.errors import TooCostly

MODULES = 8_000
"""Modules of a whole network; the most in timm and torchvision are 2,540."""
BUILT, BUILT_IN_USE = 2**33, 2**28
"""Bytes of tensors that building a network computes in all, and at a time, without parameters; timm has 4e9, 2e8."""
LARGEST_NUMBER = 2**20
"""Largest whole number among the arguments of a network: code may loop over it without making a tensor."""
IN_USE, IN_USE_RATIO = 2**28, 64
"""Bytes of tensors in use at any moment of a run, and how many more for each byte of weights."""
MADE, MADE_RATIO = 2**31, 256
"""Bytes of all tensors that a run makes."""
OPERATIONS, OPERATIONS_RATIO = 2 * 10**10, 10**4
"""Multiplications and additions of a run."""
SIGNAL_BYTES = 28
"""Bytes of memory for each value of a fixed signal while it is computed."""
_SMALL, _SMALL_BYTES = 2**20, 2**12
"""Results of so many elements are made before their size is known; while building, so many bytes do not count."""

_DATA = Tensor.data.__get__  # type: ignore[attr-defined]
_FREE = frozenset(
    {torch.empty, torch.empty_like, torch.empty_strided, torch.zeros, torch.zeros_like, Tensor.new_empty}
)
"""Functions whose result takes no memory before it is written: the system hands out zeros page by page."""
_IN_PLACE = frozenset(
    getattr(Tensor, name)
    for name in (
        "add_ bernoulli_ clamp_ clamp_max_ clamp_min_ copy_ div_ erfinv_ "
        "exponential_ fill_ mul_ neg_ normal_ pow_ sub_ uniform_ zero_"
    ).split()
)
"""Methods that write into the tensor they are called on."""
_local = threading.local()


@contextmanager
def bounded_building(model: str) -> Iterator[None]:
    """Bound what building a network inside costs; its parameters are left unwritten.

    Args:
        model: What is built, for messages.

    Raises:
        TooCostly: It makes more modules, or computes larger tensors, than the bounds allow.
    """
    before = getattr(_local, "building", None)
    bounds = _Building(model)
    with without_draws(constants=False, mode=bounds), register_module_module_registration_hook(_count):
        _local.building = bounds
        try:
            yield
        finally:
            _local.building = before


@contextmanager
def bounded_run(module: nn.Module, owner: str, values: int) -> Iterator[Callable[[int], None]]:
    """Bound what running a module inside costs, by the bytes of its weights.

    Args:
        module: Is run inside, on any device; with its weights.
        owner: What is run, for messages.
        values: Number of values of the inputs.

    Yields:
        A function that also counts the memory for comparing that many output values.

    Raises:
        TooCostly: It needs more memory or more operations than the bounds allow.
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    bounds = _Run(owner, weights)
    bounds.expect(SIGNAL_BYTES * values)
    with bounds:
        yield lambda count: bounds.expect(SIGNAL_BYTES * count)


def check_numbers(model: str, value: Any) -> None:
    """Refuse whole numbers among the arguments of a network that no network needs.

    Args:
        model: What is built, for messages.
        value: The arguments, as JSON values.

    Raises:
        TooCostly: One is larger than ``LARGEST_NUMBER``.
    """
    for number in tree_leaves(value):
        if isinstance(number, int) and abs(number) > LARGEST_NUMBER:
            raise TooCostly(
                f"{model} takes whole numbers up to {LARGEST_NUMBER:,} as arguments, got {number!r:.40}.",
                subject=model,
            )


def _count(holder: nn.Module, name: str, made: nn.Module | None) -> None:
    """Count a module that is registered while this thread builds within bounds."""
    bounds = getattr(_local, "building", None)
    if bounds is not None:
        bounds.module()


class _InUse:
    """Live bytes of the tensors that were registered with this counter."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def holds(self, size: int) -> bool:
        """Return whether so many bytes fit beside those in use."""
        if self.bytes + size > self.most:
            self._storages = {key: item for key, item in self._storages.items() if not item[0].expired()}
            self.bytes = sum(size for _, size in self._storages.values())
        return self.bytes + size <= self.most

    def keep(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.is_sparse or tensor.device.type == "meta":
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.bytes += storage.nbytes()


class _Building(NoDraws):
    """Counts modules and the bytes of computed tensors."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model, self.modules, self.left, self.in_use = model, 0, BUILT, _InUse(BUILT_IN_USE)

    def module(self) -> None:
        self.modules += 1
        if self.modules > MODULES:
            raise TooCostly(
                f"{self.model} makes more than {MODULES:,} modules, the bound for networks of a blueprint.",
                subject=self.model,
            )

    def expect(self, size: int) -> None:
        self.left -= size
        if self.left < 0 or not self.in_use.holds(size):
            raise TooCostly(
                f"Building {self.model} computes tensors of more than {BUILT_IN_USE:,} bytes at a time, or {BUILT:,} "
                "in all, its parameters not counted; these are the bounds for networks of a blueprint.",
                subject=self.model,
            )

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func in _FREE or getattr(func, "__module__", "") == "torch.nn.init":
            return super().called(func, args, kwargs)
        if getattr(func, "__name__", "") == "__get__":
            out = func(*args, **kwargs)
            if func == _DATA:
                out.of_parameter = isinstance(args[0], Parameter)
            return out
        if func in _IN_PLACE or func is Tensor.__setitem__:
            target = args[0]
            if func in _IN_PLACE and (
                isinstance(target, Parameter) or getattr(target, "of_parameter", False)
            ):
                return target
            self.expect(_bytes(target))
            self.in_use.keep([target])
            return super().called(func, args, kwargs)
        known = _on_meta(func, args, kwargs) if _most(args, kwargs) > _SMALL else None
        if known is not None:
            self.expect(sum(map(_bytes, known)))
        out = super().called(func, args, kwargs)
        large = [tensor for tensor in _tensors(out) if _bytes(tensor) > _SMALL_BYTES]
        if large:
            made = _new(large, (args, kwargs))
            if known is None:
                self.expect(sum(map(_bytes, made)))
            self.in_use.keep(made)
        return out


class _Run(TorchDispatchMode):
    """Counts the bytes and operations of a run, and the bytes that are in use."""

    def __init__(self, owner: str, weights: int) -> None:
        super().__init__()
        self.owner, self.weights = owner, weights
        self.in_use = _InUse(IN_USE + IN_USE_RATIO * weights)
        self.made, self.operations = MADE + MADE_RATIO * weights, OPERATIONS + OPERATIONS_RATIO * weights

    def expect(self, size: int) -> None:
        """Refuse a tensor of so many bytes beside those in use, before it is made."""
        self.made -= size
        if self.made < 0 or not self.in_use.holds(size):
            raise self._refused(f"bytes of memory: {self.in_use.most:,} at a time")

    def _refused(self, what: str) -> TooCostly:
        return TooCostly(
            f"Running {self.owner} on the inputs of its probe takes more {what} are allowed for {self.weights:,} bytes "
            "of weights. State smaller inputs in the probe.",
            subject=self.owner,
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            out = func(*args, **kwargs)
            self.made -= sum(map(_bytes, _tensors(out)))
            return out
        known = _on_meta(func, args, kwargs) if _most(args, kwargs) > _SMALL else None
        if known is not None:
            self._count(func, args, kwargs, known)
        out = func(*args, **kwargs)
        if known is None:
            self._count(func, args, kwargs, _tensors(out))
        self.in_use.keep(_tensors(out))
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> None:
        self._work(_operations(func.overloadpacket, args, kwargs, made))
        self.expect(sum(map(_bytes, made)))

    def _work(self, operations: int) -> None:
        self.operations -= operations
        if self.operations < 0:
            raise self._refused(f"operations: {OPERATIONS + OPERATIONS_RATIO * self.weights:,}")


def _operations(packet: Any, args: Any, kwargs: Any, made: list[Tensor]) -> int:
    """Return the multiplications and additions of a call, by the shapes of its inputs and outputs."""
    if packet in flop_registry and made:
        return flop_registry[packet](*args, **kwargs, out_val=made[0])
    if "scaled_dot_product" in packet.__name__:  # query (..., L, D), key (..., S, D)
        return 4 * args[0].numel() * args[1].shape[-2]
    pooled = "pool" in packet.__name__ and len(args) > 1 and isinstance(args[1], list)
    return (math.prod(args[1]) if pooled else 1) * sum(tensor.numel() for tensor in made[:1])


def _most(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return an upper bound of the elements of any result: the product of all sizes and numbers among the arguments."""
    most = 1
    stack: list[Any] = [*args, *kwargs.values()]
    while stack:
        argument = stack.pop()
        if isinstance(argument, Tensor):
            most *= max(1, argument.numel())
        elif isinstance(argument, list | tuple):
            stack += argument
        elif isinstance(argument, int | float) and abs(argument) > 1:
            most *= math.ceil(abs(argument)) if math.isfinite(argument) else 1
    return most


def _on_meta(func: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor] | None:
    """Return the new tensors of a call on the meta device; None where their size depends on values."""
    try:
        args, kwargs = tree_map_only(Tensor, _without_values, (args, dict(kwargs)))
        if "device" in kwargs:
            kwargs["device"] = "meta"
        with torch.device("meta"):
            return _new(_tensors(func(*args, **kwargs)), (args, kwargs))
    except Exception:  # foreign kernels refuse in their own ways
        return None


def _without_values(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors among results or arguments."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for item in value for tensor in _tensors(item)]


def _new(made: list[Tensor], arguments: Any) -> list[Tensor]:
    """Return the tensors that are no views of the arguments."""
    taken = {_place(tensor) for tensor in _tensors(arguments)}
    return [tensor for tensor in made if _place(tensor) not in taken]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _place(tensor: Tensor) -> int:
    return 0 if tensor.is_sparse else tensor.untyped_storage()._cdata
