"""Objectives of variational autoencoders: each by hand and by loops, in the real trainer, resumed, and refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor

import compatkit as ck
from compatkit.errors import CompatkitError, UsageError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers._variational import bernoulli, divergence
from compatkit_plugins.regularizers.annealed_vae import AnnealedVAE
from compatkit_plugins.regularizers.beta_tc_vae import BetaTCVAE, log_weights, total_correlation
from compatkit_plugins.regularizers.beta_vae import BetaVAE
from compatkit_plugins.regularizers.dip_vae import DIPVAE, covariance, penalty

OBJECTIVES = [
    ck.use("beta_vae", beta=2.0),
    ck.use("annealed_vae", capacity=5.0, steps=6),
    ck.use("beta_tc_vae", beta=3.0),
    ck.use("beta_tc_vae", beta=3.0, estimator="stratified"),
    ck.use("dip_vae"),
    ck.use("dip_vae", kind="i"),
]
MEAN = torch.tensor([[1.0, 0.0], [-1.0, 2.0]], dtype=torch.float64)
LOG_VARIANCE = torch.tensor([[0.0, math.log(4.0)], [0.0, 0.0]], dtype=torch.float64)
DRAWN = torch.tensor([[1.5, 0.0], [0.0, 1.0]], dtype=torch.float64)


def task(name: str = "a", **settings: Any) -> ck.Task:
    data = data_set(name, size=(16, 16))
    return ck.Task(name, data, "vae_conv", "decoder", **{"size": 16, "kwargs": {"latent": 4}, **settings})


def test_reconstruction_is_summed_over_pixels_and_averaged_over_images() -> None:
    logits = torch.tensor([[[[0.0, 0.0]]], [[[math.log(3.0), 0.0]]]])
    images = torch.tensor([[[[1.0, 0.0]]], [[[1.0, 0.25]]]])
    # an undecided pixel costs log 2, whatever it is; probability 3/4 of a 1 costs log(4/3)
    assert float(bernoulli(logits, images)) == pytest.approx(
        (3 * math.log(2) + math.log(4 / 3)) / 2, rel=1e-6
    )


def test_divergence_of_each_variable_by_hand() -> None:
    # (mu^2 + s^2 - log s^2 - 1) / 2
    wanted = [[0.5, (3 - math.log(4)) / 2], [0.5, 2.0]]
    torch.testing.assert_close(divergence(MEAN, LOG_VARIANCE), torch.tensor(wanted, dtype=torch.float64))


def test_capacity_rises_to_its_end_and_stays() -> None:
    plugin = AnnealedVAE(capacity=10.0, steps=4)
    assert [plugin.at(step) for step in (0, 1, 4, 9)] == [0.0, 2.5, 10.0, 10.0]


def by_loops(images: int, estimator: str) -> float:
    """Total correlation of the two drawn vectors, with densities and weights written out."""

    def density(j: int, i: int, k: int) -> float:
        mean, variance = float(MEAN[i, k]), math.exp(float(LOG_VARIANCE[i, k]))
        gap = float(DRAWN[j, k]) - mean
        return math.exp(-gap * gap / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    result = 0.0
    for j in (0, 1):
        # of two images one is the drawn vector's own, 1/N, and one stands for all others, (N - 1)/N
        own, other = (
            (1 / (2 * images),) * 2 if estimator == "weighted" else (1 / images, (images - 1) / images)
        )
        weight = {j: own, 1 - j: other}
        joint = sum(weight[i] * density(j, i, 0) * density(j, i, 1) for i in (0, 1))
        alone = [sum(weight[i] * density(j, i, k) for i in (0, 1)) for k in (0, 1)]
        result += math.log(joint) - math.log(alone[0]) - math.log(alone[1])
    return result / 2


@pytest.mark.parametrize("estimator", ["weighted", "stratified"])
def test_total_correlation_is_that_of_loops(estimator: str) -> None:
    weights = log_weights(2, 7, estimator)
    result = total_correlation(MEAN, LOG_VARIANCE, DRAWN, weights)
    assert float(result) == pytest.approx(by_loops(7, estimator), rel=1e-12)


def test_total_correlation_of_one_posterior_for_all_by_hand() -> None:
    same = torch.zeros(2, 2, dtype=torch.float64)
    # all posteriors are N(0, 1): stratified weights sum to 1, so the estimate is exactly 0; weighted ones to 1/N,
    # which enters once in log q(z) and twice in the product: + log N
    assert float(total_correlation(same, same, DRAWN, log_weights(2, 9, "stratified"))) == pytest.approx(
        0, abs=1e-12
    )
    assert float(total_correlation(same, same, DRAWN, log_weights(2, 9, "weighted"))) == pytest.approx(
        math.log(9)
    )


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_stratified_weights_of_a_row_sum_to_one(batch: int) -> None:
    weights = log_weights(batch, 11, "stratified").exp()
    torch.testing.assert_close(weights.sum(1), torch.ones(batch, dtype=torch.float64))
    torch.testing.assert_close(weights.diagonal(), torch.full((batch,), 1 / 11, dtype=torch.float64))


def test_covariance_and_its_penalty_by_hand() -> None:
    # means (1, 0), (-1, 2): variances 1 and 1, covariance -1; mean variances of the posteriors 1 and 2.5
    of_means = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(covariance(MEAN, LOG_VARIANCE, "i"), of_means)
    whole = covariance(MEAN, LOG_VARIANCE, "ii")
    torch.testing.assert_close(whole, of_means + torch.diag(torch.tensor([1.0, 2.5], dtype=torch.float64)))
    # off the diagonal twice 1; on it (2 - 1)^2 + (3.5 - 1)^2
    assert float(penalty(whole, 3.0, 5.0)) == pytest.approx(3 * 2 + 5 * 7.25)


@pytest.mark.parametrize(("kind", "factor"), [("i", 10.0), ("ii", 1.0)])
def test_the_diagonal_counts_ten_times_in_type_i(kind: str, factor: float) -> None:
    inputs = quick(steps=1).fit([task()], [ck.use("dip_vae", kind=kind, off_diagonal=2.0)])
    stated = quick(steps=1).fit(
        [task()], [ck.use("dip_vae", kind=kind, off_diagonal=2.0, diagonal=2 * factor)]
    )
    assert inputs.history[0]["losses"] == stated.history[0]["losses"]


@pytest.mark.parametrize("use", OBJECTIVES, ids=lambda item: f"{item.name}-{len(item.settings)}")
def test_an_objective_trains_the_whole_network(use: ck.RegularizerConfig) -> None:
    fit = quick(steps=40, lr=0.003).fit([task()], [use])
    rows = fit.history[f"a/{use.name}/reconstruction"]
    assert rows[-5:].mean() < 0.97 * rows[:5].mean()
    assert fit.tasks["a"].data.mean == (0.0,) and fit.tasks["a"].data.std == (1.0,)


def test_the_elbo_of_the_first_step_is_that_of_its_parts() -> None:
    fits = [quick(steps=1).fit([task()], [ck.use("beta_vae", beta=beta)]) for beta in (1.0, 4.0, 0.0)]
    first, four, none = (fit.history[0]["losses"] for fit in fits)
    assert four["beta_vae/divergence"] == pytest.approx(4 * first["beta_vae/divergence"], rel=1e-5)
    assert (
        none["beta_vae/divergence"] == 0
        and none["beta_vae/reconstruction"] == first["beta_vae/reconstruction"]
    )
    # beta = 1 of the total correlation, and a penalty of 0, are the plain VAE, bit for bit
    plain = quick(steps=3).fit([task()], ["beta_vae"])
    for use in (ck.use("beta_tc_vae", beta=1), ck.use("dip_vae", off_diagonal=0)):
        assert same_parts(plain, quick(steps=3).fit([task()], [use]))


@pytest.mark.parametrize("use", OBJECTIVES[:3], ids=lambda item: item.name)
def test_a_resumed_run_draws_the_same_variables_and_has_the_same_capacity(
    use: ck.RegularizerConfig, tmp_path: Path
) -> None:
    whole = quick(steps=6).fit([task()], [use])

    class Stop(Exception):
        pass

    class Breaks:
        @ck.hookimpl
        def compatkit_after_step(self, step: Any) -> None:
            if step.number == 4 and not done:
                done.append(True)
                raise Stop

    done: list[bool] = []
    trainer = quick(steps=6, checkpoint=tmp_path / "run.pt", checkpoint_every=3)
    factories = {"breaks": Breaks}
    with pytest.raises((Stop, CompatkitError)):
        trainer.fit([task()], [use, "breaks"], factories=factories)
    assert done and (tmp_path / "run.pt").exists()
    assert same_parts(whole, trainer.fit([task()], [use, "breaks"], factories=factories))


def test_latent_variables_are_drawn_in_training_and_their_means_otherwise() -> None:
    fit = quick(steps=2).fit([task()], ["beta_vae"])
    network, images = fit.network("a"), torch.rand(3, 1, 16, 16)
    assert torch.equal(network.eval()(images), network(images))
    assert not torch.equal(network.train()(images), network(images))


@pytest.mark.parametrize("kind", [BetaVAE, AnnealedVAE, BetaTCVAE, DIPVAE])
def test_they_conform(kind: type) -> None:
    assert_regularizer(kind, tasks=[task()])


def test_two_objectives_are_refused() -> None:
    with pytest.raises(CompatkitError) as caught:
        quick(steps=1).fit([task()], ["beta_vae", "dip_vae"])
    assert reason(caught.value).subject == "a" and "objective" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "subject"),
    [
        (lambda: task(normalize={"mean": 0.5, "std": 0.5}), "a"),
        (lambda: ck.Task("a", data_set("a", size=(16, 16)), "vae_conv", "encoder", size=16), "a"),
    ],
)
def test_other_tasks_are_refused(make: Any, subject: str) -> None:
    with pytest.raises(CompatkitError) as caught:
        quick(steps=1).fit([make()], ["beta_vae"])
    assert reason(caught.value).subject == subject


@pytest.mark.parametrize(
    "make",
    [
        lambda: BetaVAE(beta=-1.0),
        lambda: BetaVAE(beta=float("nan")),
        lambda: BetaTCVAE(beta=0.5),
        lambda: BetaTCVAE(estimator="exact"),
        lambda: AnnealedVAE(steps=0),
        lambda: AnnealedVAE(capacity=float("inf")),
        lambda: DIPVAE(kind="iii"),
        lambda: DIPVAE(diagonal=-1.0),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


def reason(error: CompatkitError) -> CompatkitError:
    """Return what a plugin raised, which the run reports under the plugin's name."""
    return error.__cause__ if isinstance(error.__cause__, CompatkitError) else error


def weights_of(fit: ck.Fit) -> dict[str, Tensor]:
    return fit.weights("a")


class TestRetrain:
    """Some layers anew, all others as they are."""

    def test_only_the_named_layers_move_and_start_as_from_scratch(self) -> None:
        before = weights_of(quick(steps=3).fit([task()], ["beta_vae"]))
        use = ck.use("retrain", layers=["decoder.dense*", "latent"])
        scratch, begun, after = (
            weights_of(quick(steps=steps, seed=5).fit([task(weights=value)], uses))
            for steps, value, uses in (
                (0, None, ["beta_vae"]),
                (0, before, ["beta_vae", use]),
                (2, before, ["beta_vae", use]),
            )
        )
        for name in before:
            anew = name.startswith(("decoder.dense", "latent"))
            assert torch.equal(begun[name], (scratch if anew else before)[name])
            assert torch.equal(after[name], begun[name]) != anew

    def test_layers_may_go_on_from_where_they_are(self) -> None:
        before = weights_of(quick(steps=2).fit([task()], ["beta_vae"]))
        use = ck.use("retrain", layers=["decoder"], fresh=False)
        assert_same(before, weights_of(quick(steps=0).fit([task(weights=before)], ["beta_vae", use])))

    def test_it_serves_classifiers_whose_statistics_stay(self) -> None:
        data = data_set("a")
        inputs = quick(steps=2).fit([ck.Task("a", data, "resnet8_cifar", "layer2", size=12)])
        start = ck.Task("a", data, "resnet8_cifar", "layer2", size=12, weights=weights_of(inputs))
        after = weights_of(quick(steps=3).fit([start], [ck.use("retrain", layers=["fc"])]))
        before = weights_of(inputs)
        assert {name for name in before if not torch.equal(before[name], after[name])} == {
            "fc.weight",
            "fc.bias",
        }

    @pytest.mark.parametrize(
        ("layers", "weights", "subject"),
        [(["decoder"], False, "a"), (["encoder.conv9"], True, "encoder.conv9")],
    )
    def test_refusals(self, layers: list[str], weights: bool, subject: str) -> None:
        inputs = weights_of(quick(steps=0).fit([task()], ["beta_vae"])) if weights else None
        with pytest.raises(CompatkitError) as caught:
            quick(steps=1).fit([task(weights=inputs)], ["beta_vae", ck.use("retrain", layers=layers)])
        assert reason(caught.value).subject == subject

    def test_weights_of_another_network_are_refused(self) -> None:
        inputs = weights_of(quick(steps=0).fit([task(kwargs={"latent": 3})], ["beta_vae"]))
        with pytest.raises(CompatkitError) as caught:
            quick(steps=1).fit([task(weights=inputs)], ["beta_vae", ck.use("retrain", layers=["decoder"])])
        assert reason(caught.value).subject == "a"


def assert_same(item: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert item.keys() == other.keys() and all(torch.equal(item[name], other[name]) for name in item)
