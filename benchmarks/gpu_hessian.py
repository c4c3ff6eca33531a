"""The Hessian on a GPU: products beside a hand-written double backward pass, eigenvalues beside power iteration."""

from __future__ import annotations

import curvature
import torch
import torch.nn.functional as F
from contest import Contestant, compete, ratios
from gpu_size import FULL, Size, expect_close
from torch import Tensor, nn

from compatkit_plugins import networks
from compatkit_plugins.metrics._loss import LossMetric, LossSurface, SampledExamples

COLUMNS = 4
CLOSE = 1e-3
TOLERANCE = 1e-2
"""Of a residual, relative to the largest eigenvalue."""


def surface(size: Size) -> LossSurface:
    """Return the loss of a network with random weights on random images."""
    torch.manual_seed(0)
    network = networks.build(size.network("resnet20_cifar"), num_classes=10)
    count, side = size.of(256, 8), size.of(32, 16)
    network, images = network.eval().to(size.device), torch.randn(count, 3, side, side).to(size.device)
    examples = SampledExamples(torch.arange(count), images, (torch.arange(count) % 10).to(size.device))
    return LossMetric(chunk=count).surfaces(examples, network, {})["as given"]


def by_hand(network: nn.Module, images: Tensor, labels: Tensor, vectors: Tensor) -> Tensor:
    """Return the Hessian of the mean loss times each column, by differentiating the gradient once more."""
    parameters = list(network.parameters())
    first = torch.autograd.grad(F.cross_entropy(network(images), labels), parameters, create_graph=True)
    flat = torch.cat([gradient.flatten() for gradient in first])
    columns = []
    for column in vectors.unbind(1):
        second = torch.autograd.grad(flat, parameters, column, retain_graph=True)
        columns.append(torch.cat([gradient.flatten() for gradient in second]))
    return torch.stack(columns, 1)


def products(rounds: int, size: Size = FULL) -> list[float]:
    """Return how many times as long Hessian products take as by hand, in each round."""
    loss = surface(size)
    vectors = torch.randn(loss.size, COLUMNS, generator=torch.Generator().manual_seed(0)).to(size.device)
    results = dict[str, Tensor]()
    work = {
        "ours": lambda: loss.products(vectors),
        "by hand": lambda: by_hand(loss.network, loss.images, loss.labels, vectors),
    }

    def contestant(label: str) -> Contestant:
        def finished() -> Tensor:
            product = work[label]()
            size.wait()
            return product

        return Contestant(finished, check=lambda product: results.update({label: product}))

    times = compete({label: contestant(label) for label in work}, rounds, size.seed)
    expect_close("Hessian products", results["ours"], results["by hand"], CLOSE)
    return ratios(times, "ours", "by hand")


def eigenvalues(rounds: int, size: Size = FULL) -> list[float]:
    """Return the time of block Lanczos as a share of power iteration's, in each round."""
    loss, count = surface(size), size.of(curvature.COUNT, 2)
    found = dict[str, float]()

    def lanczos() -> None:
        found["ours"] = curvature.lanczos(loss, TOLERANCE, count)[0][0]

    def power() -> None:
        found["power"] = curvature.power(loss, TOLERANCE, count)[0][0]

    times = compete({"ours": Contestant(lanczos), "power": Contestant(power)}, rounds, size.seed)
    largest = (torch.tensor(found[label]) for label in ("ours", "power"))
    expect_close("the eigenvalues of largest magnitude", *largest, share=2 * TOLERANCE)
    return ratios(times, "ours", "power")
