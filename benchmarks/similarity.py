"""Measure the cost of layer similarity, against reimplementations of the algorithms of public code.

Run ``python benchmarks/similarity.py [--rounds 3] [--out docs/results/similarity.md]``. One thread; contestants
take turns in random order in one process. Times are processor times; ratios are medians of the ratios of each round.
Layers are random float32 features with shared directions.

- ``torch_cka``: the loop of AntixK/PyTorch-Model-Compare over all pairs of layers, on one batch of all samples: for
  each pair it recomputes the other layer's Gram matrix and takes traces of matrix products.
- ``feature space``: pairwise |Y'X|^2 with centered columns; the norm of every layer is computed once.
- ``Grams once``: torch_cka with each Gram matrix and its norm computed once, and traces as sums of products: the lower
  bound of a pairwise loop.
- ``authors``: the score of bonheml/VAE_learning_dynamics for two Gram matrices: two norms and a dot product.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from contest import Contestant, compete, machine, say
from torch import Tensor

import compatkit as ck
from compatkit_plugins.metrics import _rows
from compatkit_plugins.metrics._rows import Rows, gram_products

WIDTHS = (4096, 4096, 4096, 1024, 1024, 1024, 1024, 256, 256, 256, 64, 64, 32, 16, 10)
"""Widths of the 15 layers of a network, 17,338 in total."""
NARROW = 64
MIB = 2**20


def layers(n: int, widths: Sequence[int], seed: int) -> dict[str, Tensor]:
    """Return float32 layers ``(n, width)``: ReLU of noise and 32 shared directions."""
    common = torch.randn(n, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layer{index}": (
            common @ torch.randn(32, width, generator=generator)
            + 3 * torch.randn(n, width, generator=generator)
        ).relu()
        for index, width in enumerate(widths)
    }


def ours(left: dict[str, Tensor], right: dict[str, Tensor]) -> np.ndarray:
    """Return unbiased CKA of all pairs from the public function, which also computes the biased one."""
    return ck.similarity(left, right, ["cka"]).table("cka").values


def hsic(k: Tensor, m: Tensor) -> float:
    """Return HSIC as torch_cka computes it."""
    n = k.shape[0]
    ones = torch.ones(n, 1, device=k.device)
    result = torch.trace(k @ m)
    result += ((ones.t() @ k @ ones @ ones.t() @ m @ ones) / ((n - 1) * (n - 2))).item()
    result -= ((ones.t() @ k @ m @ ones) * 2 / (n - 2)).item()
    return (1 / (n * (n - 3)) * result).item()


def torch_cka(left: dict[str, Tensor], right: dict[str, Tensor]) -> np.ndarray:
    """Return CKA of all pairs by the loop of torch_cka."""
    products = torch.zeros(len(left), len(right), 3)
    for i, x in enumerate(left.values()):
        k = x @ x.t()
        k.fill_diagonal_(0.0)
        products[i, :, 0] += hsic(k, k)
        for j, y in enumerate(right.values()):
            m = y @ y.t()
            m.fill_diagonal_(0.0)
            products[i, j, 1] += hsic(k, m)
            products[i, j, 2] += hsic(m, m)
    return (products[:, :, 1] / (products[:, :, 0].sqrt() * products[:, :, 2].sqrt())).numpy()


def grams_once(left: dict[str, Tensor], right: dict[str, Tensor]) -> np.ndarray:
    """Return unbiased CKA of all pairs by a loop over precomputed Gram matrices; nothing is read before the end."""

    def gram_products_of(side: dict[str, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        grams = []
        for x in side.values():
            x = x - x.mean(0)
            k = x @ x.t()
            k.fill_diagonal_(0.0)
            grams.append((k, k.sum(0), product(k, k, k.sum(0), k.sum(0))))
        return grams

    def product(k: Tensor, m: Tensor, a: Tensor, b: Tensor) -> Tensor:
        n = len(k)
        ends = a.sum() * b.sum() / ((n - 1) * (n - 2))
        return torch.dot(k.flatten(), m.flatten()) + ends - 2 / (n - 2) * (a @ b)

    rows, columns = gram_products_of(left), gram_products_of(right)
    table = [product(k, m, a, b) / (own * other).sqrt() for k, a, own in rows for m, b, other in columns]
    return torch.stack(table).view(len(rows), len(columns)).cpu().numpy()


def feature_space(left: dict[str, Tensor], right: dict[str, Tensor]) -> np.ndarray:
    """Return biased CKA of all pairs in feature space."""

    def centered(side: dict[str, Tensor]) -> list[tuple[Tensor, float]]:
        features = [x - x.mean(0) for x in side.values()]
        return [(x, float((x.t() @ x).square().sum().sqrt())) for x in features]

    rows, columns = centered(left), centered(right)
    return np.array([[float((y.t() @ x).square().sum()) / (a * b) for y, b in columns] for x, a in rows])


def cka(rounds: int, *, rival: str) -> list[float]:
    """Return how many times as long compatkit takes as a rival on one thread of the processor, in each round."""
    from gpu_similarity import cka as measure  # imports this script
    from gpu_size import Size

    return measure(rounds, Size("cpu"), rival=rival)


def direct_procrustes(x: Tensor, y: Tensor) -> float:
    """Return Procrustes similarity from the singular values of the whole product."""
    x, y = (layer.double() - layer.double().mean(0) for layer in (x, y))
    return float(torch.linalg.svdvals((y / y.norm()).t() @ (x / x.norm())).sum())


def short_procrustes(x: Tensor, y: Tensor) -> float:
    """Return Procrustes similarity from the metric."""
    return float(ck.similarity({"x": x}, {"y": y}, ["procrustes"]).table("procrustes").values[0, 0])


def exact(left: dict[str, Tensor], right: dict[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return unbiased and biased CKA in float64."""
    sides = ({name: layer.double() for name, layer in side.items()} for side in (left, right))
    table = ck.similarity(*sides, ["cka"])
    return table.table("cka").values, table.table("cka/biased").values


def processor(action: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    start = time.process_time()
    action()
    return time.process_time() - start


def pair_stage(left: list[Rows], right: list[Rows]) -> float:
    """Return the processor seconds of all pairs, without those of the Gram blocks."""
    seconds, add_products = [], _rows.add_products

    def timed(*arguments: object) -> None:
        seconds.append(processor(lambda: add_products(*arguments)))  # type: ignore[arg-type]

    _rows.add_products = timed  # type: ignore[assignment]
    try:
        gram_products(left, right)
    finally:
        _rows.add_products = add_products
    return sum(seconds)


def authors(n: int) -> float:
    """Return the processor seconds of one score of the authors' code."""
    rows = [(layer - layer.mean(0)).numpy() for layer in layers(n, (NARROW, NARROW), 3).values()]
    grams = [layer @ layer.T for layer in rows]

    def score() -> float:
        scaled = np.dot(grams[0].ravel(), grams[1].ravel())
        return float(scaled / (np.linalg.norm(grams[0]) * np.linalg.norm(grams[1])))

    score()
    return statistics.median(processor(score) for _ in range(7))


def memory(kind: str) -> int:
    """Return a figure of this process's memory in bytes, such as ``VmHWM``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {kind}")


def extra_memory(n: int) -> float:
    """Return the peak memory above the activations in MiB, for 15 x 15 layers of n samples."""
    sides = [[Rows.of(name, [layer]) for name, layer in layers(n, WIDTHS, seed).items()] for seed in (1, 2)]
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    gram_products(*sides)
    return (memory("VmHWM") - before) / MIB


def main() -> None:
    """Measure, print the page, and write it where ``--out`` is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--samples", type=int, default=5000, help="samples of the pair stage and of the memory figure"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    left, right = (layers(1000, WIDTHS, seed) for seed in (1, 2))
    x, y = (layers(400, (width,), seed)["layer0"] for width, seed in ((2000, 1), (1500, 2)))
    unbiased, biased = exact(left, right)
    methods: dict[str, tuple[Callable[..., np.ndarray], np.ndarray]] = {
        "compatkit": (ours, unbiased),
        "torch_cka": (torch_cka, unbiased),
        "feature space": (feature_space, biased),
        "Grams once": (grams_once, unbiased),
    }
    results: dict[str, object] = {}

    def contestant(label: str, work: Callable[..., object], *arguments: object) -> Contestant:
        return Contestant(lambda: work(*arguments), check=lambda result: results.update({label: result}))

    contestants = {label: contestant(label, work, left, right) for label, (work, _) in methods.items()}
    for label, work in (("compatkit", short_procrustes), ("direct", direct_procrustes)):
        contestants[f"Procrustes, {label}"] = contestant(f"Procrustes, {label}", work, x, y)
    times = compete(contestants, options.rounds, seed=0)
    errors = {
        label: float(np.abs(np.asarray(results[label]) - reference).max())
        for label, (_, reference) in methods.items()
    }
    whole_svd = direct_procrustes(x, y)
    errors |= {
        label: abs(float(str(result)) - whole_svd)
        for label, result in results.items()
        if "Procrustes" in label
    }
    say(f"pair stage, n = {options.samples}")
    n = options.samples
    stages = {}
    for name, count in (("one pair of networks", 15), ("5 x 5 seeds", 75)):
        sides = [
            [Rows.of(k, [layer]) for k, layer in layers(n, [NARROW] * count, seed).items()] for seed in (1, 2)
        ]
        stages[name] = 1e3 * statistics.median(pair_stage(*sides) for _ in range(options.rounds)) / count**2
        del sides
    stages["authors"] = 1e3 * authors(n)
    peak = extra_memory(n)
    text = page(times, errors, stages, peak, n, options.rounds)
    say(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


def page(
    times: dict[str, list],
    errors: dict[str, float],
    stages: dict[str, float],
    peak: float,
    n: int,
    rounds: int,
) -> str:
    """Return the figures as a Markdown page."""

    def row(label: str, own: str) -> str:
        seconds = [timing.processor for timing in times[label]]
        ratio = statistics.median(
            other.processor / baseline.processor
            for baseline, other in zip(times[own], times[label], strict=True)
        )
        shown = "" if label == own else f"{ratio:.1f}"
        return f"| {label} | {min(seconds):.2f} | {statistics.median(seconds):.2f} | {shown} | {errors[label]:.1e} |"

    lines = [
        "# What similarity of layers costs",
        "",
        f"    python benchmarks/similarity.py --rounds {rounds} --samples {n} --out docs/results/similarity.md",
        "",
        machine(),
        "",
        "Seconds of the processor, one thread, float32. `ratio`: how many times compatkit's time, the median over",
        "rounds. `error`: largest difference from float64.",
        "",
        f"CKA of 15 x 15 layers, 1,000 samples, widths from {min(WIDTHS)} to {max(WIDTHS):,} ({sum(WIDTHS):,} in all).",
        "compatkit gives the unbiased and the biased estimate; of the others `feature space` gives the biased one.",
        "`torch_cka` and `feature space` are to be at least 5 times as slow.",
        "",
        "| | least | median | ratio | error |",
        "|---|---:|---:|---:|---:|",
        *(row(label, "compatkit") for label in ("compatkit", "torch_cka", "feature space", "Grams once")),
        "",
        "Procrustes similarity of two layers, 400 samples of 2,000 and 1,500 values, in float64; the direct",
        "decomposition is to be at least 5 times as slow.",
        "",
        "| | least | median | ratio | error |",
        "|---|---:|---:|---:|---:|",
        *(row(label, "Procrustes, compatkit") for label in ("Procrustes, compatkit", "Procrustes, direct")),
        "",
        f"The pair stage, {n:,} samples: milliseconds for each score where the Grams are there.",
        "",
        "| | ms a score | goal |",
        "|---|---:|---|",
        f"| one pair of networks, 15 x 15 layers | {stages['one pair of networks']:.2f} | at most 3 |",
        f"| 5 x 5 seeds, 75 x 75 layers | {stages['5 x 5 seeds']:.2f} | at most 1 |",
        f"| the authors' score, two norms and a dot product | {stages['authors']:.2f} | |",
        "",
        f"Peak memory above the activations, 15 x 15 layers of {n:,} samples and these widths: {peak:,.0f} MiB",
        "(goal: at most 500 MB).",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
