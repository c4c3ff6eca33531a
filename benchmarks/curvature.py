"""Measure the cost of curvature: the ends of a Hessian's spectrum, and landscapes, against the usual ways.

Run ``python benchmarks/curvature.py --data-root DIR [--size 32 --examples 256]``. Data: MNIST, a ResNet-20 trained for
``--steps`` steps. Seconds are processor time of one thread.

Hessian: the 20 eigenvalues of largest size. ``power`` is PyHessian's algorithm: power iteration, each vector kept
orthogonal to those before it, with the same Hessian products, one at a time. It runs until each residual is at most
``--tolerance`` of the largest eigenvalue, which is what block Lanczos is asked for, or for 300 products; the products
after which its own rule (the value changes by less than .1 %, at most 100 products) would have stopped are given too.

Landscape: ``plain`` copies weights into the network point by point and passes all examples at once; both ways take the
same directions. Seconds are by point, from ``--points`` x ``--points`` points, passes that are shared counted as for
51 x 51. What no way can do without is given below: the convolutions of a point alone, and what they would take at the
rate of a product of large matrices.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compatkit as ck
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit_plugins.metrics._lanczos import block_lanczos, residuals
from compatkit_plugins.metrics._loss import Kept, LossMetric, LossSurface
from compatkit_plugins.metrics.loss_landscape import LossLandscape, directions, unmoved

COUNT, MOST, WHOLE = 20, 300, 51**2


def trained(given: argparse.Namespace) -> tuple[nn.Module, Kept]:
    """Return a ResNet-20 trained on MNIST, and examples."""
    data = ck.data.load("mnist", root=given.data_root)
    task = ck.Task("net", data.subset(train=2000), "resnet20_cifar", "layer2", size=given.size)
    state = ck.Trainer(steps=given.steps, batch_size=64, seed=0, precision="float32").fit([task]).tasks["net"]
    split = data.train.subset(given.examples, 0)
    images = normalize(prepare(split, state.data).images, state.data)
    kept = Kept(torch.arange(len(split)), images, torch.from_numpy(split.labels))
    return nn.Sequential(state.extractor, state.head).eval(), kept


def power(surface: LossSurface, tolerance: float) -> tuple[list[float], int, int, float]:
    """Return eigenvalues, products, those by PyHessian's own rule, and the largest residual relative to the first."""
    vectors: list[Tensor] = []
    values, spent, theirs, worst = list[float](), 0, 0, 0.0
    draw = torch.Generator().manual_seed(0)
    for _ in range(COUNT):
        following, value, stopped = torch.randn(surface.size, generator=draw), 0.0, 0
        for step in range(1, MOST + 1):
            for known in vectors:
                following = following - torch.dot(known, following) * known
            vector = following / following.norm()
            following = surface.products(vector[:, None])[:, 0]
            before, value = value, float(torch.dot(following, vector))
            apart = float((following - value * vector).norm())
            settled = step > 1 and abs(value - before) / (abs(before) + 1e-6) < 1e-3
            stopped = stopped or (step if settled or step == 100 else 0)
            if apart <= tolerance * abs(values[0] if values else value):
                break
        spent, theirs = spent + step, theirs + (stopped or step)
        vectors.append(vector)
        values.append(value)
        worst = max(worst, apart / abs(values[0]))
    return values, spent, theirs, worst


def lanczos(surface: LossSurface, tolerance: float) -> tuple[list[float], int, float]:
    """Return eigenvalues, products, and the largest residual relative to the first."""
    spent = 0

    def product(vectors: Tensor) -> Tensor:
        nonlocal spent
        spent += vectors.shape[1]
        return surface.products(vectors)

    def wanted(values: Tensor) -> Tensor:
        return values.abs().argsort(descending=True)[:COUNT]

    ritz = block_lanczos(
        product,
        surface.size,
        wanted,
        block=4,
        least=COUNT,
        most=400,
        tolerance=tolerance,
        draw=torch.Generator().manual_seed(0),
        like=torch.zeros(1),
    )
    chosen = wanted(ritz.values)
    worst = float(residuals(product, ritz, chosen, 4).max() / ritz.values.abs().max())
    return ritz.values[chosen].tolist(), spent, worst


def plain(surface: LossSurface, paths: list[str], metric: LossLandscape) -> np.ndarray:
    """Return the grid, point by point."""
    network = copy.deepcopy(surface.network)
    ways = directions(
        [surface.parameters[one] for one in paths], 2, torch.Generator().manual_seed(metric.seed + 1)
    )
    found = np.zeros((metric.points, metric.points))
    with torch.no_grad():
        for i, p in enumerate(metric.places):
            for j, q in enumerate(metric.places):
                for place, path in enumerate(paths):
                    network.get_parameter(path).copy_(
                        surface.parameters[path] + p * ways[0][place] + q * ways[1][place]
                    )
                found[i, j] = F.cross_entropy(network(surface.images), surface.labels).item()
    return found


def convolutions(surface: LossSurface) -> tuple[float, float]:
    """Return the processor time of the convolutions of one point alone, and their operations."""
    calls: list[tuple[nn.Module, Tensor]] = []
    count = 0

    def note(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal count
        calls.append((module, given[0]))
        count += 2 * output[:, 0].numel() * module.get_parameter("weight").numel()

    made = [one for one in surface.network.modules() if isinstance(one, nn.Conv2d)]
    handles = [one.register_forward_hook(note) for one in made]
    with torch.no_grad():
        for images, _ in surface.pieces():
            surface.network(images)
        for one in handles:
            one.remove()
        return sum(min(seconds(lambda: module(given)) for _ in range(5)) for module, given in calls), count  # noqa: B023


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--hessian-examples", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--points", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("hessian", "landscape"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    network, kept = trained(given)
    print(f"torch {torch.__version__}, CPU, resnet20 at {given.size} x {given.size}\n")
    if given.only != "landscape":
        few = Kept(*(getattr(kept, word)[: given.hessian_examples] for word in ("keys", "images", "labels")))
        surface = LossMetric(chunk=given.hessian_examples).surfaces(few, network, {})["as given"]
        print("| top 20 of the Hessian | seconds | products | largest residual | first | twentieth |")
        print("|---|---|---|---|---|---|")
        began = time.process_time()
        values, spent, worst = lanczos(surface, given.tolerance)
        ours = time.process_time() - began
        print(
            f"| block Lanczos | {ours:.1f} | {spent} | {worst:.1e} | {values[0]:.3f} | {values[-1]:.4f} |",
            flush=True,
        )
        began = time.process_time()
        values, spent, theirs, worst = power(surface, given.tolerance)
        took = time.process_time() - began
        print(
            f"| power iteration | {took:.1f} | {spent} | {worst:.1e} | {values[0]:.3f} | {values[-1]:.4f} |"
        )
        print(
            f"\nratio {took / ours:.1f}; by its own rule power iteration would stop after {theirs} products\n",
            flush=True,
        )
    if given.only != "hessian":
        print(
            "| landscape, 256 examples | plain ms | ours ms | ratio | largest difference |\n|---|---|---|---|---|"
        )
        layers = dict(network.named_modules())
        for name in ("", "0.layer1.1.conv1", "0.layer2.1.conv1", "1.layer3.1.conv1"):
            chosen = {name: layers[name]} if name else {}
            metric = LossLandscape(points=given.points, step=0.01, examples=given.examples)
            surface = metric.surfaces(kept, network, chosen)["as given"]
            paths = [path for path, one in surface.parameters.items() if one.ndim > 1]
            once = seconds(lambda surface=surface, paths=paths: _shared(surface, paths)) * (
                1 - given.points**2 / WHOLE
            )
            slow, fast = list[float](), list[float]()
            for _ in range(given.repeats):
                results: dict[str, np.ndarray] = {}
                slow.append(seconds(lambda: results.update(plain=plain(surface, paths, metric))))  # noqa: B023
                fast.append(seconds(lambda: results.update(ours=metric.losses(surface, "as given"))) - once)  # noqa: B023
            count = given.points**2
            one, other = min(slow) / count * 1e3, min(fast) / count * 1e3
            apart = float(np.abs(results["plain"] / results["ours"] - 1).max())
            if not name:
                alone, operations = convolutions(surface)
            print(
                f"| {name or 'all layers'} | {one:.1f} | {other:.1f} | {one / other:.2f} | {apart:.0e} |",
                flush=True,
            )
        matrix = torch.randn(2000, 2000)
        rate = 2 * 2000**3 / min(seconds(lambda: matrix @ matrix) for _ in range(5))
        print(
            f"\nconvolutions of a point alone: {alone * 1e3:.1f} ms, {operations / alone / 1e9:.0f} GFLOP/s; at the "
            f"{rate / 1e9:.0f} GFLOP/s of a product of large matrices {operations / rate * 1e3:.1f} ms"
        )


def _shared(surface: LossSurface, paths: list[str]) -> None:
    for images, _ in surface.pieces():
        with torch.no_grad(), unmoved(surface, paths, images):
            pass


if __name__ == "__main__":
    main()
