"""Profile of a step: how its time is divided, and the memory bandwidth that it reaches.

Small convolutions are bound by memory, not by arithmetic: 32 to 79 operations a byte for a ResNet-56 at 32 x 32 pixels,
where a recent GPU can do 184 in the time that it takes to fetch one. The speed of a step is therefore compared with the
time that its bytes need at least, counted for each operation that cannot be fused into another:

* convolutions and matrix products read their inputs and write their outputs, and their backward pass reads the
  output's gradient twice, once for the inputs' and once for the weights' gradient;
* norms read their input twice, first for the statistics; their backward pass reads input and gradient twice;
* pooling, softmax and the rest that is no pointwise operation count what they read and write;
* the optimizers read and write each parameter and each moment, and read the gradient.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compatkit.training.execution import Execution
from compatkit.training.loop import Loop
from compatkit.training.task_loop import TaskLoop

PARTS = ("data", "hooks", "forward", "backward", "optimizer", "rest")
COMPUTE = ("forward", "backward", "optimizer")
MUCH = 0.2
"""Share of a step besides computing from which on a warning is given."""
WARM_UP = 3


@attrs.frozen
class Profile:
    """How the time of a run's steps is divided; ``print`` shows it as a table.

    Attributes:
        milliseconds: Time of one step of each task, one after the other, without any clock inside.
        shares: Of the parts of a step; they add up to 1. Regularizers' losses count as forward pass.
        floor: Share of the device's memory bandwidth that the steps reach, counting the bytes that they must move
            (see ``compatkit.training.profiling``); None where that is not measured, which is so on a CPU.
        steps: Of each task that were timed.
    """

    milliseconds: float
    shares: Mapping[str, float]
    floor: float | None
    steps: int

    @property
    def idle(self) -> float:
        """The share that neither forward, backward nor optimizer takes."""
        return 1 - sum(self.shares[one] for one in COMPUTE)

    @property
    def warning(self) -> str | None:
        """Advice where too much of a step is not computing; None otherwise."""
        if self.idle <= MUCH:
            return None
        most = max((one for one in PARTS if one not in COMPUTE), key=lambda one: self.shares[one])
        return f"{self.idle:.0%} of a step is not computing, most of it {most}: {_REMEDIES[most]}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**attrs.asdict(self), "shares": dict(self.shares), "warning": self.warning}

    def __str__(self) -> str:
        lines = [f"{self.milliseconds:.2f} ms for a step of every task, over {self.steps} steps"]
        lines += [
            f"  {part:<10}{self.shares[part]:7.1%}  {'#' * round(40 * self.shares[part])}".rstrip()
            for part in PARTS
        ]
        if self.floor is not None:
            lines.append(
                f"  {self.floor:.0%} of the speed at which this device can move the bytes of these steps"
            )
        return "\n".join([*lines, *([self.warning] if self.warning else [])])

    __repr__ = __str__


_REMEDIES = {
    "data": "keep the images on the device, draw larger batches, or drop augmentations that cost much.",
    "hooks": "look at what the plugins do in views and after a step, and declare @effect where they are pure.",
    "rest": "the network is small for this device: larger batches, or execution='graph' on a GPU.",
}


def profile(loop: Loop, steps: int) -> Profile:
    """Take ``steps`` steps of every task twice, with clocks inside and without; the run is restored afterwards.

    Hooks are called as in training; Python values that they keep are not restored. Captured steps are timed as they
    are, and divided into parts without the capture.

    Args:
        loop: Of a prepared run.
        steps: Of each task that are timed.
    """
    settled = loop.execution
    with loop.untouched():
        _take(loop, WARM_UP)
        plain = _take(loop, steps)
        if settled.captures:
            loop.set_execution(Execution("compile" if settled.compiles else "eager", settled.reason))
            _take(loop, WARM_UP)
        shares = _shares(loop, steps)
    loop.set_execution(settled)
    device = loop.setup.precision.device
    floor = None
    if torch.device(device).type == "cuda":
        moved = sum(least_bytes(loop, task_loop) for task_loop in loop.task_loops.values())
        floor = moved / bandwidth(device) / (plain / steps)
    return Profile(1000 * plain / steps, shares, floor, steps)


def _shares(loop: Loop, steps: int) -> dict[str, float]:
    """Take steps with a clock that waits for the device after each part; return the share of each part."""
    device, unwatched = loop.setup.precision.device, loop.mark
    seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    last = time.perf_counter()

    def look(part: str) -> None:
        nonlocal last
        _wait(device)
        now = time.perf_counter()
        seconds[part] += now - last
        last = now

    loop.mark = look
    try:
        _take(loop, steps)
    finally:
        loop.mark = unwatched
    look("rest")
    return {part: one / sum(seconds.values()) for part, one in seconds.items()}


def _take(loop: Loop, steps: int) -> float:
    """Take steps of every task; return the seconds."""
    device = loop.setup.precision.device
    _wait(device)
    began = time.perf_counter()
    for number in range(steps):
        for state in loop.setup.tasks.values():
            loop.step(state, number)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


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


def least_bytes(loop: Loop, task_loop: TaskLoop) -> int:
    """Return the bytes that one step of a task must move; the run is restored afterwards.

    Args:
        loop: Of a prepared run.
        task_loop: Loop of the task.
    """
    with loop.untouched():
        step = loop.begin(task_loop, 0)
        with Traffic() as traffic:
            task_loop.objective(step)[0].backward()
        moved = [one for one in loop.trainable if one.grad is not None]
        passes = {"sgd": 5 if loop.settings.momentum else 3}.get(loop.settings.optimizer, 7)
        return traffic.bytes + passes * _bytes(moved)


def bandwidth(device: str, size: int = 2**28, rounds: int = 10) -> float:
    """Return the bytes a second that a copy on a CUDA device reads and writes, the best of some rounds.

    Args:
        device: A CUDA device.
        size: Bytes to copy.
        rounds: Copies to time.
    """
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
