"""Filters drawn before training: from a covariance, from eigenvectors of the data, and normalized on the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers.covariance_init import CovarianceInit
from compatkit_plugins.regularizers.data_dependent_init import DataDependentInit
from compatkit_plugins.regularizers.eigenvector_init import DirectionChoice, EigenvectorInit

FIRST, SECOND = "layer1.linear", "layer2.linear"
INITS = ["covariance_init", "eigenvector_init", "data_dependent_init"]
SMALL: dict[str, Any] = {"images": 48, "batch_size": 24, "patches": None}


def task(name: str = "a", **kwargs: Any) -> ck.Task:
    kwargs = {"channels": [4, 5], "img_size": 12, "reduce": "none", **kwargs}
    return ck.Task(name, data_set(name), "conv_chain", "layer1", size=12, kwargs=kwargs)


def started(use: ck.RegularizerConfig | str, *tasks: ck.Task, seed: int = 0, **settings: Any) -> ck.Fit:
    return quick(steps=0, seed=seed, **settings).fit(list(tasks) or [task()], [use])


def covariance(width: int = 9, seed: int = 0) -> Tensor:
    some = torch.randn(width, 3 * width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return some @ some.T / width


def use(name: str, **settings: Any) -> ck.RegularizerConfig:
    usual = {"covariance_init": {"covariances": {FIRST: covariance().tolist()}}}.get(name, SMALL)
    return ck.use(name, **{**usual, **settings})


def patches(images: Tensor, size: int = 3) -> Tensor:
    """Return all inner patches by the plainest loop, float64 ``(n, channels * size * size)``."""
    _, _, height, width = images.shape
    return torch.cat(
        [
            images[:, :, top : top + size, left : left + size].flatten(1)
            for top in range(height - size + 1)
            for left in range(width - size + 1)
        ]
    ).double()


def eigenvectors(rows: Tensor) -> np.ndarray:
    return np.linalg.eigh(np.cov(rows.numpy().T))[1][:, ::-1].T


def inputs(fit: ck.Fit, name: str = "a") -> Tensor:
    """Return the training images as the network takes them."""
    state = fit.tasks[name]
    pixels = torch.from_numpy(state.examples.images).movedim(3, 1).double() / 255
    mean, std = (torch.tensor(item).view(1, -1, 1, 1) for item in (state.data.mean, state.data.std))
    return ((pixels - mean) / std).float()


# Covariance


def test_drawn_filters_have_the_covariance_and_the_norm_of_the_layer() -> None:
    wanted = covariance()
    wide = task(channels=[2000, 2])
    plain = quick(steps=0).fit([wide]).weights("a")
    result = started(use("covariance_init"), wide).weights("a")
    filters = result[f"{FIRST}.weight"].flatten(1).double()
    assert float(filters.norm()) == pytest.approx(float(plain[f"{FIRST}.weight"].norm()), rel=1e-6)
    measured = np.cov(filters.numpy().T) / float(filters.square().sum() / len(filters))
    assert measured == pytest.approx((wanted / wanted.trace()).numpy(), abs=0.02)
    assert not result[f"{FIRST}.bias"].any()
    assert all(torch.equal(value, result[key]) for key, value in plain.items() if FIRST not in key)


def test_without_the_norm_filters_are_as_drawn() -> None:
    first = started(use("covariance_init", match_norm=False)).weights("a")[f"{FIRST}.weight"]
    four = {FIRST: (4 * covariance()).tolist()}
    other = started(use("covariance_init", match_norm=False, covariances=four)).weights("a")[
        f"{FIRST}.weight"
    ]
    assert torch.allclose(other, 2 * first)


def test_a_covariance_of_few_directions_gives_filters_of_these() -> None:
    rank = torch.zeros(9, 9, dtype=torch.float64)
    rank[2, 2] = 1
    weight = started(ck.use("covariance_init", covariances={FIRST: rank.numpy()})).weights("a")[
        f"{FIRST}.weight"
    ]
    assert weight.flatten(1)[:, 2].all()
    assert float(weight.flatten(1)[:, [0, 1, 3, 4, 5, 6, 7, 8]].abs().max()) < 1e-6


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {FIRST: [[1.0, 2.0], [0.0, 1.0]]},
        {FIRST: [[1.0, 2.0], [2.0, 1.0]]},
        {FIRST: [[0.0]]},
        {FIRST: [[float("nan")]]},
        {FIRST: [1.0, 2.0]},
        {FIRST: "none"},
    ],
)
def test_what_is_no_covariance_is_refused(wrong: Any) -> None:
    with pytest.raises(PluginError):
        started(ck.use("covariance_init", covariances=wrong))


def test_a_covariance_of_another_size_is_refused() -> None:
    with pytest.raises(PluginError, match="9 values"):
        started(ck.use("covariance_init", covariances={FIRST: np.eye(4).tolist()}))


def test_digests_of_the_covariances_are_reported() -> None:
    (line,) = started(use("covariance_init")).run["plugins"]
    assert line["chosen"]["covariances"][FIRST].startswith("sha256:")


# Eigenvectors


def test_filters_are_eigenvectors_of_what_each_layer_is_given() -> None:
    fit = started(use("eigenvector_init"))
    weights, images = fit.weights("a"), inputs(fit)
    first = weights[f"{FIRST}.weight"].flatten(1).double()
    wanted = eigenvectors(patches(images))[:4]
    assert np.abs(first.numpy() @ wanted.T) == pytest.approx(np.eye(4), abs=1e-4)
    # The second layer's input comes through the first layer's new filters, its zero biases and the ReLU.
    hidden = nn.functional.conv2d(images, weights[f"{FIRST}.weight"], padding=1).relu()
    second = weights[f"{SECOND}.weight"].flatten(1).double()
    wanted = eigenvectors(patches(hidden))[:5]
    assert np.abs(second.numpy() @ wanted.T) == pytest.approx(np.eye(5), abs=1e-4)
    assert not weights[f"{FIRST}.bias"].any()
    result = fit.run["pretraining"]["plugins"]["eigenvector_init"]["a"]
    assert result[FIRST]["patches"] == 48 * 100
    assert 0.3 < result[FIRST]["variance"] <= 1


def test_other_choices_of_directions() -> None:
    images = inputs(quick(steps=0).fit([task()]))
    wanted = eigenvectors(patches(images))
    settings = {"layers": [FIRST]}
    smallest = started(use("eigenvector_init", choose="smallest", **settings)).weights("a")
    filters = smallest[f"{FIRST}.weight"].flatten(1).double().numpy()
    assert np.abs(filters @ wanted[::-1][:4].T) == pytest.approx(np.eye(4), abs=1e-4)
    skipped = started(use("eigenvector_init", skip={FIRST: 3}, **settings)).weights("a")
    filters = skipped[f"{FIRST}.weight"].flatten(1).double().numpy()
    assert np.abs(filters @ wanted[3:7].T) == pytest.approx(np.eye(4), abs=1e-4)


def test_tau_weighs_directions() -> None:
    for tau, wanted in (("f1", [0.25, 0.5, 0.75, 1]), ("f3", [0.5, 0.75, 1, 1]), ([2, 3], [2, 3, 3, 3])):
        result = started(use("eigenvector_init", tau=tau, layers=[FIRST])).weights("a")[f"{FIRST}.weight"]
        assert result.flatten(1).norm(dim=1).tolist() == pytest.approx(wanted, rel=1e-5)
    plain = quick(steps=0).fit([task()]).weights("a")[f"{FIRST}.weight"]
    matched = started(use("eigenvector_init", match_norm=True, layers=[FIRST])).weights("a")[
        f"{FIRST}.weight"
    ]
    assert float(matched.norm()) == pytest.approx(float(plain.norm()), rel=1e-6)


def test_signs_are_drawn_and_do_not_depend_on_the_solver() -> None:
    vectors = torch.eye(5, dtype=torch.float64)
    choice = DirectionChoice("top", 0, (1.0,), sampled=False, signs="random")
    seen = torch.stack(
        [choice.filters(vectors, 5, torch.Generator().manual_seed(seed)).diagonal() for seed in range(200)]
    )
    assert set(seen.flatten().tolist()) == {-1.0, 1.0}
    assert seen.mean(0).abs().max() < 0.25
    flipped = choice.filters(-vectors, 5, torch.Generator().manual_seed(0))
    assert torch.equal(flipped, choice.filters(vectors, 5, torch.Generator().manual_seed(0)))
    positive = DirectionChoice("top", 0, (1.0,), sampled=False, signs="positive")
    assert torch.equal(positive.filters(-vectors, 5, torch.Generator()), vectors)


def test_sampled_filters_have_the_stated_covariance() -> None:
    choice = DirectionChoice("top", 1, (3.0, 2.0, 0.0), sampled=True, signs="random")
    vectors = torch.eye(6, dtype=torch.float64)
    filters = choice.filters(vectors, 5, torch.Generator().manual_seed(0))
    assert not filters[:, [0, 3, 4, 5]].any()
    many = torch.cat(
        [choice.filters(vectors, 5, torch.Generator().manual_seed(seed)) for seed in range(2000)]
    )
    assert np.cov(many.numpy().T, bias=True) == pytest.approx(np.diag([0, 9, 4, 0, 0, 0]), abs=0.3)
    # More filters than directions cannot be directions.
    assert DirectionChoice("top", 0, (1.0,), sampled=False, signs="random").samples(6, 7)


def mobile() -> ck.Task:
    """A network with depthwise convolutions, whose filters see one channel each."""
    return ck.Task(
        "a", data_set("a", channels=3, size=(32, 32)), "mobilenetv2_025_cifar", "blocks.1", size=32
    )


def test_a_depthwise_layer_that_is_named_is_refused() -> None:
    with pytest.raises(PluginError, match="groups"):
        started(use("eigenvector_init", layers=["blocks.0.*"]), mobile())


@pytest.mark.slow
def test_layers_that_cannot_be_initialized_are_left_out_and_reported() -> None:
    fit = started(use("eigenvector_init", batch_size=48), mobile())
    left = fit.run["plugins"][0]["chosen"]["left out"]["a"]
    result = fit.run["pretraining"]["plugins"]["eigenvector_init"]["a"]
    assert left
    assert all("groups" in reason for reason in left.values())
    assert not set(left) & set(result)
    # 1x1 convolutions to more channels than they are given sample their filters.
    assert {line["sampled"] for line in result.values()} == {True, False}


def test_batch_normalization_uses_batches_and_stores_nothing() -> None:
    plain = quick(steps=0).fit([task(norm="batch")]).weights("a")
    fit = started(use("eigenvector_init"), task(norm="batch"))
    result = fit.weights("a")
    buffers = [key for key in plain if "running" in key or "tracked" in key]
    assert len(buffers) == 6
    assert all(torch.equal(plain[key], result[key]) for key in buffers)


@pytest.mark.parametrize(
    ("name", "more"), [("eigenvector_init", {}), ("data_dependent_init", {"directions": "pca"})]
)
def test_too_few_patches_are_refused(name: str, more: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match=r"'layer1.* 8 different patches"):
        started(use(name, images=8, batch_size=8, patches=1, **more))


# Normalized on the data


@pytest.mark.parametrize("directions", ["drawn", "pca"])
def test_every_channel_has_mean_and_variance_on_the_data(directions: str) -> None:
    # Seventy filters of 36 values would not be directions: the second layer keeps its own.
    fit = started(use("data_dependent_init", directions=directions, mean=0.5), task(channels=[4, 70]))
    images, weights = inputs(fit), fit.weights("a")
    hidden = images
    for name in (FIRST, SECOND):
        gave = nn.functional.conv2d(hidden, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)
        assert gave.mean((0, 2, 3)).numpy() == pytest.approx(0.5, abs=1e-3)
        assert gave.std((0, 2, 3)).numpy() == pytest.approx(1, abs=1e-3)
        hidden = gave.relu()
    result = fit.run["pretraining"]["plugins"]["data_dependent_init"]["a"]
    assert set(result) == {FIRST, SECOND}  # not the class layer
    assert ("kept" in result[SECOND]) == (directions == "pca")


def test_principal_directions_are_whitened() -> None:
    fit = started(use("data_dependent_init", directions="pca"))
    weight = fit.weights("a")[f"{FIRST}.weight"].flatten(1).double()
    rows = patches(inputs(fit))
    codes = np.corrcoef((rows @ weight.T).numpy().T)
    assert codes == pytest.approx(np.eye(4), abs=1e-3)
    directions = (weight / weight.norm(dim=1, keepdim=True)).numpy()
    assert np.abs(directions @ eigenvectors(rows)[:4].T) == pytest.approx(np.eye(4), abs=1e-4)


def test_a_channel_that_does_not_vary_stays() -> None:
    dead = task()
    weights = {key: value for key, value in quick(steps=0).fit([dead]).weights("a").items()}
    weights[f"{FIRST}.weight"][1] = 0
    fit = started(
        use("data_dependent_init"),
        ck.Task("a", dead.data, "conv_chain", "layer1", size=12, kwargs=dead.kwargs, weights=weights),
    )
    assert fit.run["pretraining"]["plugins"]["data_dependent_init"]["a"][FIRST]["silent"] == 1
    assert not fit.weights("a")[f"{FIRST}.weight"][1].any()
    assert all(torch.isfinite(weight).all() for weight in fit.weights("a").values())


# All three


@pytest.mark.parametrize("name", INITS)
def test_they_are_repeatable_recorded_and_train(name: str) -> None:
    first, other = (quick(steps=2).fit([task()], [use(name)]) for _ in range(2))
    assert same_parts(first, other)
    assert first.run["pretraining"]["initial"]["a"] == first.tasks["a"].initial
    plain = quick(steps=2).fit([task()])
    assert not same_parts(first, plain)
    assert first.tasks["a"].initial != plain.tasks["a"].initial
    again = quick(steps=2, seed=1).fit([task()], [use(name)])
    assert not same_parts(first, again)


def test_they_keep_the_rules_of_regularizers() -> None:
    assert_regularizer(CovarianceInit, covariances={"conv1": np.eye(27).tolist()})
    assert_regularizer(EigenvectorInit, images=8, batch_size=8, patches=None, layers=["conv1"])
    assert_regularizer(DataDependentInit, images=8, batch_size=8)


@pytest.mark.parametrize("name", INITS)
def test_unknown_layers_are_refused(name: str) -> None:
    wrong = {"covariances": {"layer9": np.eye(9).tolist()}} if name == INITS[0] else {"layers": ["layer9"]}
    with pytest.raises(PluginError, match="layer9"):
        started(use(name, **wrong))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("eigenvector_init", {"choose": "middle"}),
        ("eigenvector_init", {"signs": "negative"}),
        ("eigenvector_init", {"tau": "f4"}),
        ("eigenvector_init", {"tau": []}),
        ("eigenvector_init", {"tau": [0.0]}),
        ("eigenvector_init", {"skip": -1}),
        ("eigenvector_init", {"skip": 9, "layers": [FIRST]}),
        ("eigenvector_init", {"images": 1}),
        ("eigenvector_init", {"patches": 0}),
        ("eigenvector_init", {"layers": "layer1"}),
        ("data_dependent_init", {"directions": "kmeans"}),
        ("data_dependent_init", {"mean": float("inf")}),
        ("data_dependent_init", {"batch_size": 1}),
        ("data_dependent_init", {"patches": 0}),
    ],
)
def test_settings_that_cannot_be_used_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(PluginError):
        started(use(name, **wrong))
