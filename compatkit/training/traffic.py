"""How many bytes a step must move at least where all pointwise work is fused into its neighbours.

Small convolutions are bound by memory, not by arithmetic: 32 to 79 operations a byte for a ResNet-56 at 32 x 32 pixels,
where a recent GPU can do 184 in the time that it takes to fetch one. So what a step reaches of its speed is told as a
share of the bytes that it must move, counted for each operation that cannot be fused into another:

* convolutions and matrix products read their inputs and write their outputs, and their backward pass reads the
  output's gradient twice, once for the inputs' and once for the weights' gradient;
* norms read their input twice, first for the statistics; their backward pass reads input and gradient twice;
* pooling, softmax and the rest that is no pointwise operation count what they read and write;
* the optimisers read and write each parameter and each moment, and read the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compatkit.training.agreement import untouched

if TYPE_CHECKING:
    from compatkit.training.lanes import Lane
    from compatkit.training.loop import Loop

_TWICE: Mapping[str, tuple[int, ...]] = {
    "convolution_backward": (0,),
    "native_batch_norm": (0,),
    "cudnn_batch_norm": (0,),
    "_native_batch_norm_legit": (0,),
    "_native_batch_norm_legit_no_training": (),
    "_batch_norm_with_update": (0,),
    "native_layer_norm": (0,),
    "native_group_norm": (0,),
    "native_batch_norm_backward": (0, 1),
    "cudnn_batch_norm_backward": (0, 1),
    "batch_norm_backward": (0, 1),
    "native_layer_norm_backward": (0, 1),
    "native_group_norm_backward": (0, 1),
}
"""Positions of the arguments that are read twice."""
_ONCE = (
    *("convolution", "_convolution", "mm", "addmm", "bmm", "baddbmm", "embedding"),
    *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward"),
    *("_softmax", "_log_softmax", "_log_softmax_backward_data", "_softmax_backward_data"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"),
)


class Traffic(TorchDispatchMode):
    """Counts the bytes of the operations that are called inside it.

    Attributes:
        bytes: So far.
    """

    def __init__(self) -> None:
        """Begin at nothing."""
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call, and count."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _TWICE or name in _ONCE:
            again = [args[place] for place in _TWICE.get(name, ())]
            self.bytes += _bytes(args) + _bytes(result) + _bytes(again)
        return result


def _bytes(values: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tree_leaves(values) if isinstance(one, Tensor))


def least_bytes(loop: Loop, lane: Lane) -> int:
    """Return the bytes that one step of a task must move; the run is afterwards what it was."""
    with untouched(loop):
        step = loop.begin(lane, 0)
        with Traffic() as traffic:
            lane.objective(step)[0].backward()
        moved = [one for one in loop.moving if one.grad is not None]
        passes = {"adam": 7, "sgd": 5 if loop.optimisation.momentum else 3}[loop.optimisation.kind]
        return traffic.bytes + passes * _bytes(moved)


def bandwidth(device: str, size: int = 2**28, rounds: int = 10) -> float:
    """Return the bytes a second that a copy on a CUDA device reads and writes, the best of some rounds."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target, best = torch.empty_like(source), 0.0
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()  # type: ignore[no-untyped-call]
        target.copy_(source)
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()
        best = max(best, 2 * size / (start.elapsed_time(end) / 1000))
    return best
