"""Limit the memory and compute of building a blueprint and of running its probe; both may come from an untrusted file.

Building is limited by the number of modules and by the bytes of computed tensors; parameters do not count, as they stay
uninitialized until the stored weights are loaded. A run is limited in proportion to the bytes of its weights: live
bytes, bytes allocated in total, and operations. A call whose arguments allow a large result runs on the meta device
first, so that its size is known before it is allocated; the results of other calls are charged afterwards.
"""

from __future__ import annotations

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

from compatkit.adapters.call_costs import largest_numel, operations
from compatkit.adapters.initialization import NoDraws, without_draws
from compatkit.errors import TooCostly

MAX_MODULES = 8_000
"""Largest number of modules in a network; the largest network of timm and torchvision has 2,540."""
MAX_BUILD_BYTES, MAX_BUILD_LIVE_BYTES = 2**33, 2**28
"""Limits of the bytes of tensors computed while a network is built, in total and live, without parameters. The largest
networks of timm need 4e9 and 2e8.
"""
MAX_ARGUMENT = 2**20
"""Largest integer among the arguments of a network: code may loop over it without creating a tensor."""
MAX_LIVE_BYTES, LIVE_RATIO = 2**28, 64
"""Limit of live bytes in a run: a constant, plus so many for each byte of weights."""
MAX_RUN_BYTES, RUN_RATIO = 2**31, 256
"""Limit of the bytes that a run allocates in total: a constant, plus so many for each byte of weights."""
MAX_OPERATIONS, OPERATIONS_RATIO = 2 * 10**10, 10**4
"""Limit of multiplications and additions in a run: a constant, plus so many for each byte of weights."""
BYTES_PER_PROBE_VALUE = 28
"""Peak bytes for each value of a probe's input while it is generated."""
_META_NUMEL = 2**20
"""A call whose result may have more elements than this runs on the meta device first."""
_IGNORED_BYTES = 2**12
"""Results up to this size in bytes are not charged while a network is built."""

_DATA_GETTER = Tensor.data.__get__  # type: ignore[attr-defined]
_LAZY_FACTORIES = frozenset(
    {torch.empty, torch.empty_like, torch.empty_strided, torch.zeros, torch.zeros_like, Tensor.new_empty}
)
"""Functions whose result takes no memory before it is written: the operating system commits zero pages lazily."""
_IN_PLACE = frozenset(
    getattr(Tensor, name)
    for name in (
        "add_ bernoulli_ clamp_ clamp_max_ clamp_min_ copy_ div_ erfinv_ "
        "exponential_ fill_ mul_ neg_ normal_ pow_ sub_ uniform_ zero_"
    ).split()
)
"""Methods that write into the tensor they are called on."""
_WITHOUT_TENSORS = frozenset(
    {torch._C._set_grad_enabled, Tensor.dim, Tensor.is_contiguous, Tensor.numel, Tensor.size}
)
"""Functions that are called for each layer and return no tensor."""
_local = threading.local()


@contextmanager
def bounded_building(model: str) -> Iterator[None]:
    """Limit the cost of building a network within this context; its parameters stay uninitialized.

    Args:
        model: Name of the network, for messages.

    Raises:
        TooCostly: It has more modules, or computes larger tensors, than the limits allow.
    """
    before = getattr(_local, "building", None)
    limits = _Building(model)
    with without_draws(constants=False, mode=limits), register_module_module_registration_hook(_count_module):
        _local.building = limits
        try:
            yield
        finally:
            _local.building = before


@contextmanager
def bounded_run(module: nn.Module, name: str, input_numel: int) -> Iterator[Callable[[int], None]]:
    """Limit the cost of running a module within this context, by the bytes of its weights.

    Args:
        module: Module to run, with its weights, on any device.
        name: Name of the module, for messages.
        input_numel: Number of values of the inputs.

    Yields:
        A function that charges the memory for comparing a number of output values; call it before comparing them.

    Raises:
        TooCostly: It needs more memory or more operations than the limits allow.
    """
    limits = _Run(name, sum(map(_nbytes, module.state_dict().values())))
    limits.charge(BYTES_PER_PROBE_VALUE * input_numel)
    with limits:
        yield lambda numel: limits.charge(BYTES_PER_PROBE_VALUE * numel)


def check_numbers(model: str, value: Any) -> None:
    """Refuse implausibly large integers among the arguments of a network.

    Args:
        model: Name of the network, for messages.
        value: The arguments, as JSON values.

    Raises:
        TooCostly: The absolute value of one exceeds ``MAX_ARGUMENT``.
    """
    for number in tree_leaves(value):
        if isinstance(number, int) and abs(number) > MAX_ARGUMENT:
            raise TooCostly(
                f"An argument of {model} is {number!r:.40}; the limit for integers is {MAX_ARGUMENT:,}.",
                subject=model,
            )


def _count_module(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    """Count a module that is registered while this thread builds within limits."""
    limits = getattr(_local, "building", None)
    if limits is not None:
        limits.count_module()


class _LiveBytes:
    """Counter of the live bytes of tracked tensors."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def fits(self, size: int) -> bool:
        """Return whether so many more bytes fit; freed tensors no longer count."""
        if self.bytes + size > self.limit:
            self._storages = {key: item for key, item in self._storages.items() if not item[0].expired()}
            self.bytes = sum(size for _, size in self._storages.values())
        return self.bytes + size <= self.limit

    def track(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of tensors until they are freed; the counter keeps none alive."""
        for tensor in tensors:
            if tensor.is_sparse or tensor.device.type == "meta":
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.bytes += storage.nbytes()


class _Building(NoDraws):
    """Limits on the modules and on the bytes of computed tensors while a network is built."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model, self.modules = model, 0
        self.bytes_left, self.live = MAX_BUILD_BYTES, _LiveBytes(MAX_BUILD_LIVE_BYTES)

    def count_module(self) -> None:
        self.modules += 1
        if self.modules > MAX_MODULES:
            raise TooCostly(
                f"{self.model} has more than {MAX_MODULES:,} modules, the limit for networks built from a blueprint.",
                subject=self.model,
            )

    def charge(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0 or not self.live.fits(size):
            raise TooCostly(
                f"Building {self.model} computes tensors of more than {MAX_BUILD_LIVE_BYTES:,} live bytes or "
                f"{MAX_BUILD_BYTES:,} in total, without parameters: the limits for networks built from a blueprint.",
                subject=self.model,
            )

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func in _WITHOUT_TENSORS:
            return func(*args, **kwargs)
        if func in _LAZY_FACTORIES or getattr(func, "__module__", "") == "torch.nn.init":
            return super().called(func, args, kwargs)
        if getattr(func, "__name__", "") == "__get__":
            out = func(*args, **kwargs)
            if func == _DATA_GETTER:
                # ``parameter.data`` is a plain tensor: the mark exempts writes into it from being charged.
                out.of_parameter = isinstance(args[0], Parameter)
            return out
        if func in _IN_PLACE or func is Tensor.__setitem__:
            target = args[0]
            if func in _IN_PLACE and (
                isinstance(target, Parameter) or getattr(target, "of_parameter", False)
            ):
                return target
            self.charge(_nbytes(target))
            self.live.track([target])
            return super().called(func, args, kwargs)
        meta_outputs = _outputs_if_large(getattr(func, "__name__", ""), func, args, kwargs)
        if meta_outputs is not None:
            self.charge(sum(map(_nbytes, meta_outputs)))
        out = super().called(func, args, kwargs)
        large = [tensor for tensor in _tensors(out) if _nbytes(tensor) > _IGNORED_BYTES]
        if large:
            allocated = _non_views(large, (args, kwargs))
            if meta_outputs is None:
                self.charge(sum(map(_nbytes, allocated)))
            self.live.track(allocated)
        return out


class _Run(TorchDispatchMode):
    """Limits on the operations, allocated bytes and live bytes of a run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that torch does not import its compiler, two seconds, to leave this mode out of it."""
        return False

    def __init__(self, name: str, weight_bytes: int) -> None:
        super().__init__()
        self.name, self.weight_bytes = name, weight_bytes
        self.live = _LiveBytes(MAX_LIVE_BYTES + LIVE_RATIO * weight_bytes)
        self.max_bytes = self.bytes_left = MAX_RUN_BYTES + RUN_RATIO * weight_bytes
        self.max_operations = self.operations_left = MAX_OPERATIONS + OPERATIONS_RATIO * weight_bytes

    def charge(self, size: int) -> None:
        """Charge a tensor of so many bytes before it is allocated; raise where it exceeds a limit."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise self._refused(f"{self.max_bytes:,} bytes of tensors in total")
        if not self.live.fits(size):
            raise self._refused(f"{self.live.limit:,} bytes of live tensors")

    def _refused(self, limit: str) -> TooCostly:
        return TooCostly(
            f"Running {self.name} on its probe needs more than {limit}, the limit for {self.weight_bytes:,} bytes of "
            "weights. State smaller inputs in the probe.",
            subject=self.name,
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            out = func(*args, **kwargs)
            self.bytes_left -= sum(map(_nbytes, _tensors(out)))
            return out
        meta_outputs = _outputs_if_large(func.overloadpacket.__name__, func, args, kwargs)
        if meta_outputs is not None:
            self._charge_call(func, args, kwargs, meta_outputs)
        out = func(*args, **kwargs)
        outputs = _tensors(out)
        if meta_outputs is None:
            self._charge_call(func, args, kwargs, outputs)
        self.live.track(outputs)
        return out

    def _charge_call(self, func: Any, args: Any, kwargs: Any, outputs: list[Tensor]) -> None:
        self.operations_left -= operations(func.overloadpacket, args, kwargs, outputs)
        if self.operations_left < 0:
            raise self._refused(f"{self.max_operations:,} operations")
        self.charge(sum(map(_nbytes, outputs)))


def _outputs_if_large(name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor] | None:
    """Return the outputs of a call on the meta device if they may be large, else None."""
    return _on_meta(func, args, kwargs) if largest_numel(name, args, kwargs) > _META_NUMEL else None


def _on_meta(func: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor] | None:
    """Return the new tensors of a call on the meta device; None if their size depends on values."""
    try:
        args, kwargs = tree_map_only(Tensor, _without_values, (args, dict(kwargs)))
        if "device" in kwargs:
            kwargs["device"] = "meta"
        with torch.device("meta"):
            return _non_views(_tensors(func(*args, **kwargs)), (args, kwargs))
    except Exception:  # kernels without a meta implementation raise various exceptions
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


def _non_views(outputs: list[Tensor], arguments: Any) -> list[Tensor]:
    """Return the outputs that do not share storage with the arguments."""
    taken = {_storage_key(tensor) for tensor in _tensors(arguments)}
    return [tensor for tensor in outputs if _storage_key(tensor) not in taken]


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _storage_key(tensor: Tensor) -> int:
    return 0 if tensor.is_sparse else tensor.untyped_storage()._cdata
