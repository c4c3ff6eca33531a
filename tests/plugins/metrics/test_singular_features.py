"""Singular features: hand-made weights and data, subspaces that do not change under rotation, matches, refusals."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import DataError, EnvironmentFailure, IntegrityError, MissingDependency, UsageError
from compatkit.evaluation.metrics import Observation, Subject, Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics._matching import lpips, pearson, ssim
from compatkit_plugins.metrics._singular import angles, as_pictures, decompose, input_rows
from compatkit_plugins.metrics.singular_features import SingularFeatures, singular_pictures


def linear(weight: Tensor) -> nn.Sequential:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.float()
    return nn.Sequential(nn.Flatten(), layer)


def orthonormal(rows: int, columns: int, seed: int = 0) -> Tensor:
    draw = torch.randn(columns, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(draw).Q[:rows]


def tables(
    network: nn.Module, images: Tensor, labels: Tensor, *, other: nn.Module | None = None, **settings: Any
):
    table = ck.measure(
        network, (images, labels), [SingularFeatures(**settings)], layers=["1"], other=other, batch_size=3
    )
    return {name.split("/")[1]: match for name, match in table.items() if isinstance(match, Table)}


def test_energy_angles_and_cosines_worked_out_by_hand() -> None:
    # The layer looks along the first axis (value 3) and the second (value 1); the third is not seen.
    network = linear(torch.tensor([[3.0, 0, 0, 0], [0, 1, 0, 0]]))
    images = torch.tensor([[1.0, 0, 0, 0], [0, 2, 2, 0], [0, 0, 0, 5]])[:, None, None]
    result = tables(network, images, torch.tensor([0, 1, 2]), top=1)
    energy = result["energy"]
    assert [energy.at(layer="1", subspace=kind, **{"class": "0"}).value for kind in ("top", "active")] == [
        1.0,
        1.0,
    ]
    assert energy.at(layer="1", subspace="top", **{"class": "1"}).value == pytest.approx(0.0)
    assert energy.at(layer="1", subspace="active", **{"class": "1"}).value == pytest.approx(0.5)
    assert energy.at(layer="1", subspace="active", **{"class": "2"}).value == pytest.approx(0.0)
    # The strongest component of the data is the fourth axis (25 of its square): a right angle.
    assert result["angle_to_data"].at(layer="1", angle="1").value == pytest.approx(np.pi / 2)
    # (3, -1, -1, -1) / 4 with itself, and with (-1, -1, -1, 3) / 4.
    assert result["cosine"].at(layer="1", vector="1", **{"class": "0"}).value == pytest.approx(1.0)
    assert result["cosine"].at(layer="1", vector="1", **{"class": "2"}).value == pytest.approx(1 / 3)


def test_layers_of_a_trained_network_have_the_scores_of_numpy() -> None:
    data, kwargs = data_set("a"), {"channels": [4, 5], "img_size": 12, "norm": "batch"}
    task = ck.Task("a", data, "conv_chain", "layer1", size=12, kwargs=kwargs)
    fit = quick(steps=3).fit([task])
    metric = [SingularFeatures(top=2)]
    table = ck.measure(fit.tasks["a"], data.test, metric, layers=["layer1.linear"], batch_size=17)
    energy, cosine, angle = (
        table.table(f"singular_features/{name}") for name in ("energy", "cosine", "angle_to_data")
    )
    state, scipy = fit.tasks["a"].data, pytest.importorskip("scipy.linalg")
    given = (data.test.images[..., 0] / 255 - state.mean[0]) / state.std[0]
    given = np.pad(given, ((0, 0), (1, 1), (1, 1)))  # the padding counts
    patches = np.stack([given[:, i : i + 3, j : j + 3].reshape(48, 9) for i, j in np.ndindex(12, 12)], 1)
    matrix = fit.weights("a")["layer1.linear.weight"].double().numpy().reshape(4, 9)
    vectors = np.linalg.svd(matrix)[2]
    for label in range(3):
        mean = patches[data.test.labels == label].mean((0, 1))
        for kind, rank in (("top", 2), ("active", 4)):
            share = np.square(vectors[:rank] @ mean).sum() / np.square(mean).sum()
            cell = energy.at(layer="layer1.linear", subspace=kind, **{"class": str(label)})
            assert cell.value == pytest.approx(share, rel=1e-5)
        for place in range(2):
            expected = abs(np.corrcoef(vectors[place], mean)[0, 1])
            cell = cosine.at(layer="layer1.linear", vector=str(place + 1), **{"class": str(label)})
            assert cell.value == pytest.approx(expected, rel=1e-4)
    rows = patches.reshape(-1, 9)
    data_directions = np.linalg.svd(rows, full_matrices=False)[2][:2]
    expected = np.sort(scipy.subspace_angles(vectors[:2].T, data_directions.T))
    assert angle.values[0] == pytest.approx(expected, rel=1e-5)


def test_subspace_scores_do_not_change_when_vectors_turn_inside_the_subspace() -> None:
    basis, images = orthonormal(3, 12), torch.rand(9, 1, 3, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(9) % 3
    first, other = linear(basis), linear(orthonormal(3, 3, seed=2) @ basis)
    left, right = tables(first, images, labels, top=3), tables(other, images, labels, top=3, other=first)
    for name in ("energy", "angle_to_data"):
        assert np.allclose(left[name].values, right[name].values, atol=1e-5)
    assert np.allclose(right["angle_to_other"].values, 0.0, atol=1e-3)
    assert not np.allclose(left["cosine"].values, right["cosine"].values, atol=1e-2)


def test_equal_singular_values_leave_a_subspace_undetermined() -> None:
    network = linear(torch.eye(4))
    result = tables(network, torch.rand(6, 1, 2, 2), torch.arange(6) % 2, top=2)
    cell = result["energy"].at(layer="1", subspace="top", **{"class": "0"})
    assert (cell.status, cell.reason) == ("degenerate", "singular values 2 and 3 are nearly equal")
    assert result["energy"].at(layer="1", subspace="active", **{"class": "0"}).value == pytest.approx(1.0)


def test_weights_along_the_datas_own_directions_have_no_angle() -> None:
    images = torch.randn(50, 1, 2, 5, generator=torch.Generator().manual_seed(3)) * torch.arange(1, 6)
    _, _, vectors = torch.linalg.svd(images.flatten(1).double(), full_matrices=False)
    network = linear(torch.diag(torch.tensor([3.0, 2.0]).double()) @ vectors[:2])
    result = tables(network, images, torch.arange(50) % 2, top=2)
    assert np.allclose(result["angle_to_data"].values, 0.0, atol=1e-3)


def test_the_tolerance_says_what_is_active() -> None:
    network = linear(torch.diag(torch.tensor([1.0, 0.01, 0, 0])))
    images, labels = torch.ones(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64)
    for tolerance, share in ((None, 0.5), (0.1, 0.25)):
        cell = tables(network, images, labels, tolerance=tolerance)["energy"].at(
            layer="1", subspace="active", **{"class": "0"}
        )
        assert cell.value == pytest.approx(share)


def test_classes_without_images_or_with_a_mean_of_zero_are_undefined() -> None:
    images = torch.tensor([[1.0, 0], [-1.0, 0], [1.0, 1.0]])[:, None, None]
    result = tables(linear(torch.eye(2)), images, torch.tensor([0, 0, 2]), top=1)
    reasons = [
        result["energy"].at(layer="1", subspace="active", **{"class": name}).reason
        for name in ("0", "1", "2")
    ]
    assert reasons == ["the class mean is zero", "no examples of this class", ""]
    assert result["angle_to_data"].cells[0].value is not None


def test_angles_are_exact_near_zero_and_near_a_right_angle() -> None:
    for angle in (0.0, 1e-9, 1e-4, 0.7, np.pi / 2 - 1e-4, np.pi / 2):
        tensor = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]], dtype=torch.float64)
        other = torch.tensor([[np.cos(angle), np.sin(angle), 0]], dtype=torch.float64)
        assert float(angles(tensor, other)) == pytest.approx(angle, abs=1e-15, rel=1e-7)
        assert float(angles(other, tensor)) == pytest.approx(angle, abs=1e-15, rel=1e-7)
    result = angles(orthonormal(2, 6), orthonormal(3, 6, seed=1))
    scipy = pytest.importorskip("scipy.linalg")
    expected = scipy.subspace_angles(orthonormal(2, 6).T.numpy(), orthonormal(3, 6, seed=1).T.numpy())
    assert np.allclose(result.numpy(), expected[::-1])


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(2, 5, 3, stride=2, padding=1, bias=False), nn.Linear(6, 4, bias=False)]
)
def test_rows_times_the_matrix_are_what_the_layer_gives(layer: nn.Module) -> None:
    values = torch.randn(3, 2, 7, 6)
    rows, places = input_rows(layer, values)
    with torch.no_grad():
        gave = layer(values)
    expected = (
        gave.flatten(2).transpose(1, 2).flatten(0, 1) if isinstance(layer, nn.Conv2d) else gave.flatten(0, 2)
    )
    output = rows @ layer.weight.detach().flatten(1).T  # type: ignore[operator, union-attr]
    assert torch.allclose(output, expected, atol=1e-5) and places == len(rows) // 3


def test_a_convolution_is_scored_over_its_patches() -> None:
    network = nn.Sequential(nn.Identity(), nn.Conv2d(1, 2, 3, bias=False))
    result = tables(
        network, torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64), top=2, image_range=(0, 1)
    )
    assert 0 < float(result["energy"].values[0, 0, 1]) < 1
    assert result["match_ssim"].cells[0].reason.startswith("the layer does not take whole images")


def test_a_vector_that_is_an_image_matches_it_with_either_sign() -> None:
    images = torch.rand(5, 1, 12, 12, generator=torch.Generator().manual_seed(4))
    for sign in (1, -1):
        network = linear(sign * images[3].flatten()[None])
        result = tables(
            network, images * 2 - 1, torch.zeros(5, dtype=torch.int64), top=2, image_range=(-1, 1)
        )
        assert result["match_pearson"].at(layer="1", vector="1").value == pytest.approx(1.0, abs=1e-6)
        assert result["match_ssim"].at(layer="1", vector="1").value == pytest.approx(0.0, abs=1e-2)
        assert result["match_ssim"].at(layer="1", vector="2").status == "undefined"
        assert "LPIPS" not in result["match_ssim"].estimator


def slow_ssim(item: np.ndarray, other: np.ndarray) -> float:
    place = np.arange(11) - 5
    window = np.exp(-(place[:, None] ** 2 + place[None] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    values = []
    for row in range(item.shape[0] - 10):
        for column in range(item.shape[1] - 10):
            a, b = (x[row : row + 11, column : column + 11] for x in (item, other))
            ma, mb = (window * a).sum(), (window * b).sum()
            va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
            both = (window * (a - ma) * (b - mb)).sum()
            c1, c2 = 1e-4, 9e-4
            values.append((2 * ma * mb + c1) * (2 * both + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2)))
    return float(np.mean(values))


def test_similarities_equal_slow_references() -> None:
    left, right = torch.rand(2, 1, 13, 14), torch.rand(3, 1, 13, 14)
    for i in range(2):
        for j in range(3):
            a, b = left[i, 0].double().numpy(), right[j, 0].double().numpy()
            assert float(ssim(left, right)[i, j]) == pytest.approx(slow_ssim(a, b), abs=1e-9)
            assert float(pearson(left, right)[i, j]) == pytest.approx(np.corrcoef(a.flat, b.flat)[0, 1])
    assert float(pearson(torch.ones(1, 4), torch.rand(1, 4))) == 0.0
    images = torch.rand(2, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(pearson(images * 1e-30, images), pearson(images, images))


def test_a_picture_is_spread_over_its_range() -> None:
    picture = as_pictures(torch.tensor([[-1.0, 0.0, 1.0, 3.0]]), (1, 2, 2))
    assert picture.tolist() == [[[[0.0, 0.25], [0.5, 1.0]]]]


def test_results_say_what_they_are_and_conform() -> None:
    result = tables(linear(torch.eye(4)), torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64), top=2)
    assert result["angle_to_data"].unit == "rad" and result["energy"].direction == "higher"
    assert "tolerance" not in result["energy"].estimator and "float32" in result["energy"].estimator
    assert all(match.paper and match.equation for match in result.values())
    assert_metric(SingularFeatures, subject=subject(), batches=batches(), top=2, image_range=(0, 1))


def subject() -> Subject:
    network, other = linear(orthonormal(3, 16)), linear(orthonormal(3, 16, seed=1))
    for place, item in enumerate((network, other)):
        item[1].weight.data *= torch.tensor([3.0, 2.0, 1.0])[:, None] + place  # type: ignore[operator, union-attr]
    return Subject(
        network=network,
        layers={"1": network[1]},
        classes=("a", "b"),
        other=other,
        other_layers={"1": other[1]},
    )


def batches() -> list[Observation]:
    made = []
    for count in (8, 5):
        images = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(count))
        fields = {
            "labels": torch.arange(count) % 2,
            "positions": torch.arange(count),
            "logits": images[:, 0, 0],
        }
        made.append(Observation(images=images, inputs={"1": images.flatten(1)}, **fields))
    return made


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top": 0}, "'top' must be a whole number from 1 up"),
        ({"tolerance": 1.0}, "'tolerance' must be a number from 0 to below 1"),
        ({"lpips_trunk": "alexnet.pth"}, "lpips_trunk and lpips_sha256 must be given together"),
        ({"lpips_trunk": "alexnet.pth", "lpips_sha256": "0"}, "give their image_range"),
        ({"image_range": (1, 0)}, "the lowest and the highest value of an image"),
        ({"image_range": 3}, r"image_range is two numbers, such as \(0, 1\), .*; got 3"),
        ({"image_range": (0, 1, 2)}, r"image_range is two numbers, .*; got \(0, 1, 2\)"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SingularFeatures(**settings)


def test_images_outside_the_declared_range_are_refused() -> None:
    with pytest.raises(DataError, match=r"values from .* to 3, and image_range declares \(0, 1\)"):
        tables(linear(torch.eye(4)), torch.full((2, 1, 2, 2), 3.0), torch.tensor([0, 1]), image_range=(0, 1))


@pytest.mark.parametrize(
    "layer", [nn.ReLU(), nn.Conv2d(2, 2, 1, groups=2), nn.Conv2d(2, 2, 3, padding="same")]
)
def test_layers_without_a_matrix_are_refused(layer: nn.Module) -> None:
    network = nn.Sequential(nn.Identity(), layer)
    with pytest.raises(UsageError, match=r"takes (linear layers and )?convolutions"):
        tables(network, torch.rand(2, 2, 4, 4), torch.tensor([0, 1]))


def test_lpips_needs_its_package_and_the_very_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "alexnet.pth"
    torch.save({"features.0.weight": torch.zeros(1, 1, 1, 1)}, weights)
    monkeypatch.setitem(sys.modules, "lpips", None)
    with pytest.raises(MissingDependency, match=r"pip install 'compatkit\[lpips\]'"):
        lpips(str(weights), "0" * 64)
    monkeypatch.setitem(sys.modules, "lpips", object())
    with pytest.raises(IntegrityError, match="expected sha256"):
        lpips(str(weights), "0" * 64)
    with pytest.raises(EnvironmentFailure, match=r"none\.pth"):
        lpips(str(tmp_path / "none.pth"), "0" * 64)


@pytest.mark.skipif(importlib.util.find_spec("lpips") is None, reason="the extra lpips is not installed")
def test_lpips_runs_offline_on_the_weights_given(tmp_path: Path) -> None:
    from torchvision.models import alexnet

    weights = tmp_path / "alexnet.pth"
    torch.save(alexnet().state_dict(), weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    images = torch.rand(3, 1, 12, 12)
    apart = lpips(str(weights), digest)(images[:2], images)
    assert apart.shape == (2, 3) and float(apart[0, 0]) == 0.0 and float(apart[0, 1]) > 0
    result = tables(
        linear(images[0].flatten()[None]),
        images,
        torch.zeros(3, dtype=torch.int64),
        top=1,
        image_range=(0, 1),
        lpips_trunk=str(weights),
        lpips_sha256=digest,
    )
    assert digest in result["match_lpips"].estimator and result["match_lpips"].cells[0].value is not None
    torch.save({"features.0.weight": torch.zeros(1, 1, 1, 1)}, weights)
    with pytest.raises(UsageError, match="not a state dict of torchvision's AlexNet"):
        lpips(str(weights), hashlib.sha256(weights.read_bytes()).hexdigest())


def test_decompose_is_the_svd_in_float64() -> None:
    layer = nn.Conv2d(2, 3, 3)
    result = decompose(layer)
    _, values, vectors = np.linalg.svd(
        layer.weight.detach().double().numpy().reshape(3, 18), full_matrices=False
    )
    assert np.allclose(result.values.numpy(), values) and result.vectors.dtype == torch.float64
    assert np.allclose(np.abs((result.vectors.numpy() * vectors).sum(1)), 1)


def test_vectors_become_pictures_with_their_values() -> None:
    images, titles = singular_pictures(
        linear(torch.diag(torch.tensor([3.0, -2.0, 0.5, 0])))[1], (1, 2, 2), top=2
    )
    assert titles == ["3", "2"] and np.allclose(images, [[[[1, 0], [0, 0]]], [[[0, 1], [0, 0]]]])
    assert ck.pictures.signed(images, titles).startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"Expected rows of \(1, 3, 3\) values; the matrix has rows of 4"):
        singular_pictures(linear(torch.eye(4))[1], (1, 3, 3))


def test_a_block_is_refused_by_its_name_in_one_line() -> None:
    network = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    result = (
        "The layer '0': .*; got a Sequential, which holds other layers. Name other layers, such as layers="
    )
    with pytest.raises(UsageError, match=result) as refused:
        ck.measure(
            network, (torch.rand(2, 1, 2, 2), torch.tensor([0, 1])), [SingularFeatures()], layers=["0"]
        )
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match=r"need layers; name some.* The network's layers are 0, 0\.0, 0\.1"):
        ck.measure(network, (torch.rand(2, 1, 2, 2), torch.tensor([0, 1])), [SingularFeatures()])
