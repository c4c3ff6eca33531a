"""Metrics on another device give what the CPU gives; arrays of a GPU are compared there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from devices import CUDA, on, other_devices
from small import data_set, quick

import compatkit as ck
from compatkit.errors import DataError
from compatkit_plugins.metrics.cka import CKA

LAYERS = ["layer1.0.conv1", "layer2.0.conv1"]
METRICS: dict[str, dict[str, Any]] = {
    "accuracy": {},
    "cka": {},
    "cross_correlation": {},
    "eigenvector_match": {},
    "gradient_projection": {},
    "gradient_scale": {},
    "h_score": {},
    "hessian_spectrum": {"count": 2, "most": 8, "probes": 1, "steps": 3},
    "leep": {},
    "logme": {},
    "loss_landscape": {"points": 3},
    "loss_variation": {},
    "matched_correlation": {},
    "minibatch_cka": {},
    "misalignment": {},
    "mutual_information_plane": {},
    "mutual_neighbors": {},
    "nce": {},
    "procrustes": {},
    "pwcca": {},
    "singular_features": {},
    "specialization": {},
    "stable_rank": {},
    "streamed_cka": {},
    "svcca": {},
    "transfer_function": {},
}
ON_GPU = (
    "accuracy",
    "cka",
    "gradient_scale",
    "hessian_spectrum",
    "loss_landscape",
    "minibatch_cka",
    "streamed_cka",
)
"""Metrics whose figures do not depend on the last digit of an activation."""


@pytest.fixture(scope="module")
def networks() -> list[Any]:
    tasks = [ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=16) for name in ("left", "right")]
    return list(quick(steps=2, device="cpu").fit(tasks).tasks.values())


def figures(value: Any) -> list[Any]:
    """Return the numbers of a document in their order."""
    if isinstance(value, dict):
        return [figure for each in value.values() for figure in figures(each)]
    if isinstance(value, list | tuple):
        return [figure for each in value for figure in figures(each)]
    return [value] if isinstance(value, int | float) else []


def measured(networks: list[Any], name: str, device: str) -> list[Any]:
    """Return the figures of a metric, of one network if it takes no second."""
    this, other = networks
    metric = ck.metrics.make_metric(name, **METRICS[name])
    failure: Exception | None = None
    for second in (None, other):
        for layers in ([], LAYERS):
            try:
                result = ck.measure(
                    this,
                    data_set("left").test,
                    [metric],
                    layers=layers,
                    other=second,
                    batch_size=20,
                    device=device,
                )
            except (ck.errors.UsageError, DataError) as error:
                failure = error
            else:
                return figures([result.to_json()[key] for key in result.to_json() if key != "settings"])
    raise AssertionError(failure)


@pytest.mark.parametrize("name", METRICS)
def test_figures_are_those_of_a_cpu(networks: list[Any], name: str) -> None:
    expected = measured(networks, name, "cpu")
    with on("pretended") as there:
        found = measured(networks, name, there)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5, nan_ok=True) and expected


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("name", ON_GPU)
def test_figures_of_a_gpu_are_those_of_a_cpu(networks: list[Any], name: str, device: str) -> None:
    expected = measured(networks, name, "cpu")
    assert measured(networks, name, device) == pytest.approx(expected, rel=2e-2, abs=1e-3, nan_ok=True)


def arrays(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(20, width, generator=draw) for name, width in (("first", 7), ("second", 30))}


@other_devices
def test_arrays_of_one_device_are_compared_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ck.similarity(arrays(0), arrays(1), ["cka"]).table("cka").values
    seen, compare = set[str](), CKA.compare

    def noting(self: CKA, left: Any, right: Any) -> Any:
        seen.update(rows.values.device.type for rows in (*left, *right))
        return compare(self, left, right)

    monkeypatch.setattr(CKA, "compare", noting)
    with on(device) as there:
        left, right = ({name: layer.to(there) for name, layer in arrays(seed).items()} for seed in (0, 1))
        found = ck.similarity(left, right, ["cka"]).table("cka").values
        assert seen == {there}
        seen.clear()
        mixed = ck.similarity(left, arrays(1), ["cka"]).table("cka").values
        with_numpy = ck.similarity(left, {name: layer.numpy() for name, layer in arrays(1).items()}, ["cka"])
    assert seen == {"cpu"}
    for values in (found, mixed, with_numpy.table("cka").values):
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


@other_devices
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_a_metric_of_labels_takes_arrays_of_a_device(device: str, kind: torch.dtype) -> None:
    def score(features: torch.Tensor, labels: torch.Tensor) -> list[Any]:
        document = ck.measure_arrays("h_score", features, labels).to_json()
        return figures([value for key, value in document.items() if key != "settings"])

    features, labels = arrays(0)["second"], (torch.arange(20) % 3).to(kind)
    expected = score(features, labels)
    with on(device) as there:
        assert score(features.to(there), labels.to(there)) == pytest.approx(expected, rel=1e-4)
    assert expected


@other_devices
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_there_too(device: str, wrong: float) -> None:
    layers = arrays(0)
    layers["second"][13, 4] = wrong
    with on(device) as there, pytest.raises(DataError, match="row 13") as caught:
        ck.similarity({name: layer.to(there) for name, layer in layers.items()})
    assert caught.value.subject == "second"


@other_devices
@pytest.mark.parametrize("kind", [torch.complex64, "empty"])
def test_what_is_no_array_of_numbers_is_refused_there_too(device: str, kind: Any) -> None:
    layer = torch.ones(0, 3) if kind == "empty" else torch.ones(20, 3, dtype=kind)
    with on(device) as there, pytest.raises(DataError) as caught:
        ck.similarity({"wrong": layer.to(there)})
    assert caught.value.subject == "wrong"
