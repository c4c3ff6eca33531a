"""Hessian spectrum: against dense Hessians and matrices of known spectrum, certificates, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics._lanczos import block_lanczos, quadrature, residuals
from compatkit_plugins.metrics.hessian_spectrum import HessianSpectrum


def network(*, seed: int = 0, drop: float = 0.0) -> nn.Module:
    """A small network whose parts have second derivatives; its normalization has statistics of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Dropout(drop), nn.Linear(8, 3)
        )
        for _ in range(3):
            made(torch.randn(16, 1, 4, 4))
    return made.eval()


def examples(count: int = 30) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(count) % 3


def dense(net: nn.Module, images: Tensor, labels: Tensor) -> np.ndarray:
    """Return the eigenvalues of the Hessian as torch builds it, in float64, ascending."""
    values = {name: value.detach().double() for name, value in net.named_parameters()}
    buffers = {
        name: value.double() if value.is_floating_point() else value for name, value in net.named_buffers()
    }

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([value.numel() for value in values.values()])
        shaped = {
            name: part.view_as(value) for (name, value), part in zip(values.items(), parts, strict=True)
        }
        return F.cross_entropy(functional_call(net, {**buffers, **shaped}, (images.double(),)), labels)

    flat = torch.cat([value.flatten() for value in values.values()])
    return torch.linalg.eigvalsh(hessian(loss, flat)).numpy()  # type: ignore[arg-type]


def spectrum(net: nn.Module, data: tuple[Tensor, Tensor], **settings: Any) -> dict[str, Table]:
    table = ck.measure(net, data, [HessianSpectrum(**settings)])
    return {name: table.table(name) for name in table}


def test_both_ends_equal_the_dense_hessian_with_negative_values_in_their_place() -> None:
    net, data = network(), examples()
    exact = dense(net, *data)
    assert exact[0] < -1e-3 < 1e-3 < exact[-1]
    eigenvalues = spectrum(net, data, count=12, precision="float64", tolerance=1e-9, chunk=7)
    largest, smallest, magnitude = eigenvalues["hessian_spectrum"].values[0]
    assert np.abs(largest - exact[::-1][:12]).max() < 1e-8
    assert np.abs(smallest - exact[:12]).max() < 1e-8
    by_size = exact[np.argsort(-np.abs(exact), kind="stable")][:12]
    assert np.abs(magnitude - by_size).max() < 1e-8 and magnitude.min() < 0


def test_the_residual_bounds_the_distance_to_an_eigenvalue_converged_or_not() -> None:
    net, data = network(), examples()
    exact = dense(net, *data)
    for most in (8, 16, 47):
        eigenvalues = spectrum(net, data, count=6, precision="float64", most=most, block=2, tolerance=1e-10)
        values, errors = (
            eigenvalues[name].values for name in ("hessian_spectrum", "hessian_spectrum/residual")
        )
        apart = np.abs(values[..., None] - exact).min(-1)
        assert (apart <= errors + 1e-12).all()
        unsure = [value.status == "approximate" for _, value in eigenvalues["hessian_spectrum"]]
        assert unsure == (errors.flatten() > 1e-10 * np.abs(values).max()).tolist()
        assert any(unsure) == (most < 47)


def test_examples_pass_in_chunks_of_any_size_and_products_in_blocks_of_any_size() -> None:
    net, data = network(), examples()
    settings = {"count": 5, "precision": "float64", "tolerance": 1e-9, "ends": ["largest"]}
    first = spectrum(net, data, **settings)["hessian_spectrum"].values
    for chunk, block in ((30, 1), (7, 8)):
        other = spectrum(net, data, chunk=chunk, block=block, **settings)["hessian_spectrum"].values
        assert np.allclose(first, other, atol=1e-10)


def test_float32_reaches_its_tolerance() -> None:
    net, data = network(), examples()
    eigenvalues = spectrum(net, data, count=5, ends=["largest", "smallest"])
    assert all(value.status == "ok" for _, value in eigenvalues["hessian_spectrum"])
    exact = dense(net, *data)
    assert np.allclose(eigenvalues["hessian_spectrum"].values[0, 0], exact[::-1][:5], atol=1e-3 * exact[-1])


def test_named_layers_give_the_block_of_their_parameters() -> None:
    net, data = network(), examples()
    table = ck.measure(
        net, data, [HessianSpectrum(count=30, precision="float64", tolerance=1e-9)], layers=["5"]
    )
    net.double()
    only = nn.Sequential(nn.Flatten(), net[5])  # type: ignore[index]
    features = net[:4](data[0].double()).detach()  # type: ignore[index]
    values = table.table("hessian_spectrum").values[0, 0, :27]
    assert np.allclose(values, dense(only, features, data[1])[::-1], atol=1e-7)
    assert (
        table.table("hessian_spectrum").at(case="as given", end="largest", place="28").status == "undefined"
    )


def matrix(values: Tensor, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64))[0]
    return turn @ torch.diag(values) @ turn.T


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([5.0, 5, 5, 2, 1, 0, 0, 0, 0, -3, -3], dtype=torch.float64),  # several times the same
        torch.zeros(7, dtype=torch.float64),
        torch.ones(6, dtype=torch.float64),  # the first block is invariant
        torch.linspace(-1, 4, 60, dtype=torch.float64),
    ],
)
def test_multiple_and_zero_eigenvalues_are_found(values: Tensor) -> None:
    dense_matrix, size = matrix(values), len(values)
    ritz = block_lanczos(
        lambda v: dense_matrix @ v,
        size,
        lambda known: torch.arange(len(known)),
        block=3,
        min_size=size,
        max_size=size,
        tolerance=1e-11,
        draw=torch.Generator().manual_seed(2),
        like=dense_matrix,
    )
    assert len(ritz.values) == size
    assert torch.allclose(ritz.values, values.sort().values, atol=1e-10)
    assert torch.allclose(ritz.vectors.T @ ritz.vectors, torch.eye(size, dtype=torch.float64), atol=1e-10)
    assert float(residuals(lambda v: dense_matrix @ v, ritz, torch.arange(size), 4).max()) < 1e-9


def test_quadrature_is_exact_for_polynomials_in_the_direction_of_each_probe() -> None:
    dense_matrix = matrix(torch.linspace(-1, 4, 40, dtype=torch.float64))
    start = torch.randn(40, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    start = start / start.norm(dim=0)
    nodes, weights = quadrature(
        lambda v: dense_matrix @ v,
        40,
        probes=2,
        steps=6,
        draw=torch.Generator().manual_seed(3),
        like=dense_matrix,
    )
    for power in range(12):
        exact = (start * (torch.linalg.matrix_power(dense_matrix, power) @ start)).sum(0)
        assert torch.allclose((weights * nodes**power).sum(1), exact, rtol=1e-10)


def test_the_density_has_mass_one_and_the_mean_of_the_spectrum() -> None:
    net, data = network(), examples()
    exact = dense(net, *data)
    eigenvalues = spectrum(net, data, count=1, precision="float64", probes=60, steps=10, points=400, chunk=30)
    grid, density = eigenvalues["hessian_spectrum/density"].values[0].T
    width = grid[1] - grid[0]
    assert density.sum() * width == pytest.approx(1, abs=0.01)
    assert (grid * density).sum() * width == pytest.approx(exact.mean(), abs=0.3 * exact.std())


def test_controls_measure_shuffled_labels_and_random_weights() -> None:
    net, data = network(), examples()
    saved = {name: value.clone() for name, value in net.state_dict().items()}
    result = spectrum(net, data, count=1, ends=["largest"], controls=True)["hessian_spectrum"]
    assert result.axes["case"] == ("as given", "permuted labels", "random weights")
    assert len(set(result.values.flatten().tolist())) == 3
    assert all(torch.equal(item, net.state_dict()[name]) for name, item in saved.items())


def test_the_sample_of_examples_depends_on_their_positions_alone() -> None:
    assert_metric(HessianSpectrum, count=2, examples=9, ends=["largest"], precision="float64", tolerance=1e-6)


def test_products_that_are_no_hessian_are_refused() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.fc(F.dropout(images.flatten(1), 0.5, training=True))

    with pytest.raises(DataError) as caught:
        spectrum(Noisy(), examples(), count=2)
    assert caught.value.code == "data"


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({"count": 0}, "count"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"ends": ["top"]}, "ends"),
        ({"block": True}, "block"),
        ({"examples": 0}, "examples"),
    ],
)
def test_bad_settings(settings: dict[str, Any], subject: str) -> None:
    with pytest.raises(UsageError) as caught:
        HessianSpectrum(**settings)
    assert caught.value.subject == subject


def test_labels_outside_the_classes_are_refused() -> None:
    images, labels = examples()
    with pytest.raises(DataError):
        spectrum(network(), (images, labels + 3))


@pytest.mark.filterwarnings("ignore")
def test_curvlinops_agrees() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    net, (images, labels) = network().double(), examples()
    images = images.double()
    parameters = list(net.parameters())
    operator = curvlinops.HessianLinearOperator(
        net, nn.CrossEntropyLoss(), parameters, [(images, labels)], check_deterministic=False
    )
    theirs = torch.linalg.eigvalsh(operator @ torch.eye(operator.shape[0], dtype=torch.float64)).numpy()
    eigenvalues = spectrum(net, (images, labels), count=10, precision="float64", tolerance=1e-9)
    assert np.abs(eigenvalues["hessian_spectrum"].values[0, 0] - theirs[::-1][:10]).max() < 1e-8
