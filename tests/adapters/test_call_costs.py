"""Costs of calls against torch's own tables, and against the results of the calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from compatkit.adapters.call_costs import largest_numel, operations

x, y = torch.ones(2, 4, 9, 10), torch.ones(4, 1, 10)
CALLS = {
    "conv1d": lambda: nn.Conv1d(4, 6, 3, 2, 1)(torch.ones(2, 4, 11)),
    "conv2d": lambda: nn.Conv2d(4, 6, (3, 5), (2, 1), (1, 2))(x),
    "dilated": lambda: nn.Conv2d(4, 6, 3, dilation=(2, 3), padding=3)(x),
    "groups": lambda: nn.Conv2d(4, 8, 3, groups=4)(x),
    "one number for all sides": lambda: torch.ops.aten.convolution(
        x, torch.ones(6, 4, 3, 3), None, [2], [1], [1], False, [0], 1
    ),
    "without batch": lambda: nn.Conv2d(4, 6, 3)(x[0]),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1)(x),
    "transposed groups": lambda: nn.ConvTranspose2d(4, 6, 2, 3, groups=2, dilation=2)(x),
    "conv3d": lambda: nn.Conv3d(4, 6, 3, padding=1)(torch.ones(1, 4, 5, 6, 7)),
    "linear": lambda: nn.Linear(10, 7)(x),
    "plain linear": lambda: nn.Linear(10, 7, bias=False)(torch.ones(3, 10)),
    "batched product": lambda: torch.bmm(torch.ones(3, 4, 5), torch.ones(3, 5, 6)),
    "added product": lambda: torch.baddbmm(torch.ones(1), torch.ones(3, 4, 5), torch.ones(3, 5, 6)),
    "attention": lambda: F.scaled_dot_product_attention(*3 * [torch.ones(2, 3, 5, 8)]),
    "broadcast sum": lambda: x + y,
    "both grow": lambda: torch.ones(5, 1) * torch.ones(1, 6),
    "with a number": lambda: x - 10**9,
    "relu": lambda: F.relu(x),
    "clamp": lambda: x.clamp(-5, 7),
    "batch norm": lambda: nn.BatchNorm2d(4).eval()(x),
    "max pool": lambda: F.max_pool2d(x, 3, 2, 1),
    "max pool, ceiling": lambda: F.max_pool2d(x, 2, 1, 1, ceil_mode=True),
    "average pool": lambda: F.avg_pool2d(x, 3, 1, 1),
    "unknown": lambda: torch.cat([x, x]),
}


class Compared(TorchDispatchMode):
    """Compares what a call is said to cost with its result and with torch's table."""

    seen: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        results = [
            value for value in (out if isinstance(out, tuple) else (out,)) if isinstance(value, Tensor)
        ]
        if func.is_view:
            return out
        bound = largest_numel(func.overloadpacket.__name__, args, kwargs)
        assert bound >= sum(result.numel() for result in results), func
        if func.overloadpacket in flop_registry:
            expected = flop_registry[func.overloadpacket](*args, **kwargs, out_val=results[0])
            assert operations(func.overloadpacket, args, kwargs, results) == expected, func
        if func.overloadpacket.__name__ in ("convolution", "mm", "addmm", "bmm", "baddbmm", "add", "mul"):
            assert bound == results[0].numel(), func
        self.seen += 1
        return out


@pytest.mark.parametrize("call", CALLS)
def test_a_call_costs_what_its_result_and_the_table_of_torch_say(call: str) -> None:
    with torch.no_grad(), Compared() as compared:
        CALLS[call]()
    assert compared.seen


def test_a_pad_a_range_and_a_diagonal_are_not_underestimated() -> None:
    for name, function, args in (
        ("constant_pad_nd", torch.constant_pad_nd, (x, [50, 60])),
        ("arange", torch.arange, (0, 1, 1e-3)),
        ("diag", torch.diag, (torch.ones(30),)),
    ):
        assert largest_numel(name, args, {}) >= function(*args).numel()


def test_a_bounded_run_of_a_residual_network_imports_no_compiler() -> None:
    program = """
import sys, torch
from compatkit.adapters.bounds import bounded_run
from compatkit_plugins.networks import build
module = build("resnet20_cifar", num_classes=3).eval()
with torch.no_grad(), bounded_run(module, "it", 0):
    module(torch.ones(2, 3, 32, 32))
assert not {"torch._dynamo", "sympy", "triton"} & sys.modules.keys(), "slow imports"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
