"""Measure the cost of curvature: extreme eigenvalues of a Hessian and loss landscapes, against standard methods.

Run ``python benchmarks/curvature.py --data-root DIR [--size 32 --examples 256]``. Data: MNIST, a ResNet-20 trained for
``--steps`` steps. Seconds are processor time of one thread.

Hessian: the 20 eigenvalues of largest magnitude. ``power`` is PyHessian's algorithm: power iteration, orthogonalized
against earlier vectors, with the same Hessian-vector products, one at a time. It runs until each residual is at most
``--tolerance`` of the largest eigenvalue, the tolerance of block Lanczos, or for 300 products. The table also gives the
number of products at which PyHessian's own rule (the value changes by less than .1 %, at most 100 products) would stop.

Landscape: ``plain`` copies weights into the network point by point and passes all examples at once; both methods use
the same directions. Times are per point, from ``--points`` x ``--points`` points; shared passes are counted as for
51 x 51. The lower bounds below the table are the time of a point's convolutions alone, and their time at the rate of a
product of large matrices.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from contest import Contestant, Mismatch, compete, ratios
from torch import Tensor, nn

import compatkit as ck
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit_plugins.metrics._lanczos import block_lanczos, residuals
from compatkit_plugins.metrics._loss import LossMetric, LossSurface, SampledExamples
from compatkit_plugins.metrics.loss_landscape import LossLandscape, directions, unmoved
from compatkit_plugins.networks.residual import resnet20_cifar

COUNT, MOST, WHOLE = 20, 300, 51**2


def trained(options: argparse.Namespace) -> tuple[nn.Module, SampledExamples]:
    """Return a ResNet-20 trained on MNIST, and examples."""
    data = ck.data.load("mnist", root=options.data_root)
    task = ck.Task("net", data.subset(train=2000), "resnet20_cifar", "layer2", size=options.size)
    trainer = ck.Trainer(steps=options.steps, batch_size=64, seed=0, precision="float32")
    state = trainer.fit([task]).tasks["net"]
    split = data.train.subset(options.examples, 0)
    images = normalize(prepare(split, state.data).images, state.data)
    examples = SampledExamples(torch.arange(len(split)), images, torch.from_numpy(split.labels))
    return nn.Sequential(state.extractor, state.head).eval(), examples


def power(
    surface: LossSurface, tolerance: float, count: int = COUNT, *, own_rule: bool = False
) -> tuple[list[float], int, int, float]:
    """Return eigenvalues, products, products by PyHessian's own rule, and the largest residual over the first value.

    Args:
        surface: The loss.
        tolerance: Residual of a value, as a share of the largest value.
        count: Number of values.
        own_rule: Whether to stop by PyHessian's rule, in place of the tolerance.
    """
    vectors: list[Tensor] = []
    values, spent, pyhessian, worst = list[float](), 0, 0, 0.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        start = torch.randn(surface.size, generator=generator).to(surface.images.device)
        product, value, stopped = start, 0.0, 0
        for step in range(1, MOST + 1):
            for previous in vectors:
                product = product - torch.dot(previous, product) * previous
            vector = product / product.norm()
            product = surface.products(vector[:, None])[:, 0]
            before, value = value, float(torch.dot(product, vector))
            residual = float((product - value * vector).norm())
            converged = step > 1 and abs(value - before) / (abs(before) + 1e-6) < 1e-3
            stopped = stopped or (step if converged or step == 100 else 0)
            if stopped if own_rule else residual <= tolerance * abs(values[0] if values else value):
                break
        spent, pyhessian = spent + step, pyhessian + (stopped or step)
        vectors.append(vector)
        values.append(value)
        worst = max(worst, residual / abs(values[0]))
    return values, spent, pyhessian, worst


def lanczos(surface: LossSurface, tolerance: float, count: int = COUNT) -> tuple[list[float], int, float]:
    """Return eigenvalues, products, and the largest residual over the first value."""
    spent = 0

    def product(vectors: Tensor) -> Tensor:
        nonlocal spent
        spent += vectors.shape[1]
        return surface.products(vectors)

    def largest(values: Tensor) -> Tensor:
        return values.abs().argsort(descending=True)[:count]

    ritz = block_lanczos(
        product,
        surface.size,
        largest,
        block=4,
        min_size=count,
        max_size=400,
        tolerance=tolerance,
        draw=torch.Generator().manual_seed(0),
        like=torch.zeros(1, device=surface.images.device),
    )
    chosen = largest(ritz.values)
    worst = float(residuals(product, ritz, chosen, 4).max() / ritz.values.abs().max())
    return ritz.values[chosen].tolist(), spent, worst


def plain(
    surface: LossSurface, paths: list[str], metric: LossLandscape, *, pieces: bool = False
) -> np.ndarray:
    """Return the grid of losses, computed point by point, with all images at once or in the pieces of the surface."""
    examples = list(surface.pieces()) if pieces else [(surface.images, surface.labels)]
    network = copy.deepcopy(surface.network)
    axes = directions(
        [surface.parameters[path] for path in paths], 2, torch.Generator().manual_seed(metric.seed + 1)
    )
    losses = np.zeros((metric.points, metric.points))
    with torch.no_grad():
        for i, p in enumerate(metric.coordinates):
            for j, q in enumerate(metric.coordinates):
                for index, path in enumerate(paths):
                    network.get_parameter(path).copy_(
                        surface.parameters[path] + p * axes[0][index] + q * axes[1][index]
                    )
                summed = (F.cross_entropy(network(x), y, reduction="sum").item() for x, y in examples)
                losses[i, j] = sum(summed) / len(surface.labels)
    return losses


def landscape(rounds: int, *, layer: str) -> list[float]:
    """Return how many times as long a landscape takes as a plain loop, on one thread, in each round.

    A ResNet-20 as drawn, 128 images of 16 x 16, 9 x 9 points. The plain loop copies weights into the network point by
    point and passes the same pieces of the images.
    """
    torch.manual_seed(0)
    network, count = resnet20_cifar(in_chans=1, num_classes=10).eval(), 128
    images, labels = torch.randn(count, 1, 16, 16), torch.randint(10, (count,))
    metric = LossLandscape(points=9, examples=count)
    layers = {layer: network.get_submodule(layer)} if layer else {}
    surface = metric.surfaces(SampledExamples(torch.arange(count), images, labels), network, layers)[
        "as given"
    ]
    paths = [path for path, parameter in surface.parameters.items() if parameter.ndim > 1]
    results: dict[str, np.ndarray] = {}
    contestants = {
        "ours": Contestant(
            lambda: metric.losses(surface, "as given"), check=lambda grid: results.update(ours=grid)
        ),
        "plain": Contestant(
            lambda: plain(surface, paths, metric, pieces=True), check=lambda grid: results.update(plain=grid)
        ),
    }
    times = compete(contestants, rounds, seed=0)
    if not np.allclose(results["ours"], results["plain"], rtol=1e-4):
        raise Mismatch("the two landscapes differ")
    return ratios(times, "ours", "plain", processor=True)


def eigenvalues(rounds: int) -> list[float]:
    """Return the processor time of the top 20 of a Hessian by that of PyHessian's algorithm with its own rule.

    A ResNet-20 as drawn, 16 images of 16 x 16, one thread; ours goes on until residuals are below .01 of the largest.
    """
    torch.manual_seed(0)
    network, images = resnet20_cifar(in_chans=1, num_classes=10).eval(), torch.randn(16, 1, 16, 16)
    examples = SampledExamples(torch.arange(16), images, torch.arange(16) % 10)
    surface = LossMetric(chunk=16).surfaces(examples, network, {})["as given"]
    contestants = {
        "ours": Contestant(lambda: lanczos(surface, 1e-2)),
        "PyHessian": Contestant(lambda: power(surface, 1e-2, own_rule=True)),
    }
    return ratios(compete(contestants, rounds, seed=0), "ours", "PyHessian", processor=True)


def convolutions(surface: LossSurface) -> tuple[float, float]:
    """Return the processor seconds and the operations of the convolutions of one point."""
    calls: list[tuple[nn.Module, Tensor]] = []
    count = 0

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal count
        calls.append((module, inputs[0]))
        count += 2 * output[:, 0].numel() * module.get_parameter("weight").numel()

    layers = [layer for layer in surface.network.modules() if isinstance(layer, nn.Conv2d)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        for images, _ in surface.pieces():
            surface.network(images)
        for handle in handles:
            handle.remove()
        return sum(min(seconds(lambda: module(inputs)) for _ in range(5)) for module, inputs in calls), count  # noqa: B023


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of a call in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


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
    options = parser.parse_args()
    torch.set_num_threads(1)
    network, examples = trained(options)
    print(f"torch {torch.__version__}, CPU, resnet20 at {options.size} x {options.size}\n")
    if options.only != "landscape":
        few = SampledExamples(
            *(getattr(examples, word)[: options.hessian_examples] for word in ("keys", "images", "labels"))
        )
        surface = LossMetric(chunk=options.hessian_examples).surfaces(few, network, {})["as given"]
        print("| top 20 of the Hessian | seconds | products | largest residual | first | twentieth |")
        print("|---|---|---|---|---|---|")
        began = time.process_time()
        values, spent, worst = lanczos(surface, options.tolerance)
        ours = time.process_time() - began
        print(
            f"| block Lanczos | {ours:.1f} | {spent} | {worst:.1e} | {values[0]:.3f} | {values[-1]:.4f} |",
            flush=True,
        )
        began = time.process_time()
        values, spent, pyhessian, worst = power(surface, options.tolerance)
        theirs = time.process_time() - began
        print(
            f"| power iteration | {theirs:.1f} | {spent} | {worst:.1e} | {values[0]:.3f} | {values[-1]:.4f} |"
        )
        print(
            f"\nratio {theirs / ours:.1f}; by its own rule power iteration would stop after {pyhessian} products\n",
            flush=True,
        )
    if options.only != "hessian":
        print(
            "| landscape, 256 examples | plain ms | ours ms | ratio | largest difference |\n|---|---|---|---|---|"
        )
        layers = dict(network.named_modules())
        for name in ("", "0.layer1.1.conv1", "0.layer2.1.conv1", "1.layer3.1.conv1"):
            chosen = {name: layers[name]} if name else {}
            metric = LossLandscape(points=options.points, step=0.01, examples=options.examples)
            surface = metric.surfaces(examples, network, chosen)["as given"]
            paths = [path for path, parameter in surface.parameters.items() if parameter.ndim > 1]
            once = seconds(lambda surface=surface, paths=paths: _shared(surface, paths)) * (
                1 - options.points**2 / WHOLE
            )
            slow, fast = list[float](), list[float]()
            for _ in range(options.repeats):
                results: dict[str, np.ndarray] = {}
                slow.append(seconds(lambda: results.update(plain=plain(surface, paths, metric))))  # noqa: B023
                fast.append(seconds(lambda: results.update(ours=metric.losses(surface, "as given"))) - once)  # noqa: B023
            count = options.points**2
            slow_ms, fast_ms = min(slow) / count * 1e3, min(fast) / count * 1e3
            difference = float(np.abs(results["plain"] / results["ours"] - 1).max())
            if not name:
                alone, operations = convolutions(surface)
            print(
                f"| {name or 'all layers'} | {slow_ms:.1f} | {fast_ms:.1f} | {slow_ms / fast_ms:.2f} "
                f"| {difference:.0e} |",
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
