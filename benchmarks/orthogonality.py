"""Measure the cost of the spectral term per step, without the Gram matrix and with it.

Run ``python benchmarks/orthogonality.py [--repeats 20]``. For weights of common shapes: milliseconds of the term and
its gradient, medians of interleaved repeats; ``dense`` computes W'W - I like the authors' code, ``matrix-free`` is the
code of the regularizer. Both use the same random numbers and give the same term.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit_plugins.regularizers.orthogonality import spectral_excess

SHAPES = ((16, 27), (64, 576), (128, 784), (256, 1152), (512, 2304), (512, 4608))


def dense(weight: Tensor, start: Tensor) -> Tensor:
    """Return the authors' estimate, squared, of ``(out, in)``."""
    excess = weight.T @ weight - torch.eye(weight.shape[1], device=weight.device)
    u = F.normalize(start, dim=0, eps=1e-12)
    v = F.normalize(excess.T @ u, dim=0, eps=1e-12)
    u = F.normalize(excess @ v, dim=0, eps=1e-12)
    return torch.dot(u, excess @ v).square()


def matrix_free(weight: Tensor, start: Tensor) -> Tensor:
    """Return the same estimate without the matrix."""
    return spectral_excess(weight[None], start[None]).square()


def milliseconds(term: Callable[[Tensor, Tensor], Tensor], weight: Tensor, start: Tensor) -> float:
    """Return the milliseconds of the term and its gradient."""
    weight.grad = None
    start_time = time.perf_counter()
    term(weight, start).backward()
    if weight.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start_time)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads\n")
    print("| out x in | dense ms | matrix-free ms | ratio | relative difference |\n|---|---|---|---|---|")
    for rows, columns in SHAPES:
        source = torch.Generator().manual_seed(rows)
        weight = (
            (torch.randn(rows, columns, generator=source) / columns**0.5).to(options.device).requires_grad_()
        )
        start = torch.randn(columns, generator=source).to(options.device)
        difference = float((dense(weight, start) / matrix_free(weight, start) - 1).detach().abs())
        times: dict[str, list[float]] = {"dense": [], "matrix_free": []}
        for _ in range(options.repeats):
            for term in (dense, matrix_free):
                times[term.__name__].append(milliseconds(term, weight, start))
        slow, fast = (median(times[name]) for name in ("dense", "matrix_free"))
        print(f"| {rows} x {columns} | {slow:.2f} | {fast:.2f} | {slow / fast:.1f} | {difference:.0e} |")


if __name__ == "__main__":
    main()
