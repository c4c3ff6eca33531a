"""Posterior collapse: units by hand, in pieces, of a real network, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import CompatkitError, DataError
from compatkit_plugins.metrics.posterior_collapse import PosteriorCollapse

MEAN = torch.tensor([[0.0, 2.0, 1.0], [0.0, -2.0, 1.0], [0.0, 2.0, 1.0], [0.0, -2.0, 1.0]])
VARIANCE = torch.tensor([[1.0, 0.1, 0.5], [1.0, 0.1, 1.0], [1.0, 0.1, 0.5], [1.0, 0.1, 1.0]])
OUTPUT = torch.cat([MEAN, VARIANCE.log()], dim=1)


def test_a_passive_an_active_and_a_mixed_unit_by_hand() -> None:
    metric = PosteriorCollapse()
    *counts, table = metric.finalize(metric.update(metric.init(), {"latent": OUTPUT}))
    assert {count.name: count.value for count in counts} == {
        **{"units/active": 1.0, "units/mixed": 1.0, "units/passive": 1.0, "units/varying": 1.0}
    }
    wanted = torch.tensor(
        [
            [0, 1, 0, 1],
            [4, 0.1, (4 + 0.1 - math.log(0.1) - 1) / 2, 0],
            [0, 0.75, (1 + 0.75 - math.log(0.5) / 2 - 1) / 2, 0.5],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(torch.from_numpy(table.values), wanted, rtol=1e-6, atol=1e-6)


def test_batches_may_come_in_pieces_and_none_is_undefined() -> None:
    metric = PosteriorCollapse()
    parts = [metric.update(metric.init(), {"latent": part}) for part in OUTPUT.split([1, 3])]
    whole = metric.finalize(metric.update(metric.init(), {"latent": OUTPUT}))
    assert metric.finalize(metric.merge(metric.init(), metric.merge(*parts)))[:-1] == whole[:-1]
    assert metric.finalize(metric.init())[0].status == "undefined"


def test_units_of_a_trained_network_are_those_of_a_plain_pass() -> None:
    data = data_set("a", size=(16, 16))
    task = ck.Task("a", data, "vae_conv", "decoder", size=16, kwargs={"latent": 4})
    fit = quick(steps=20, lr=0.003).fit([task], ["beta_vae"])
    state, outputs = fit.tasks["a"], list[torch.Tensor]()
    table = ck.measure(state, data.test, ["posterior_collapse"], layers=["latent"], batch_size=17)
    layer = state.extractor.double().eval().get_submodule("latent")
    handle = layer.register_forward_hook(lambda _, inputs, output: outputs.append(output))
    with torch.no_grad():
        state.extractor(torch.from_numpy(data.test.images).permute(0, 3, 1, 2).double() / 255)
    handle.remove()
    rows = []
    for mean, log_variance in zip(*outputs[0].T.split(4), strict=True):
        square = log_variance.exp()
        divergence = (mean**2 + square - log_variance - 1) / 2
        near = (square > 0.9).double()
        rows.append(
            [float(entry) for entry in (mean.var(correction=0), *map(torch.mean, (square, divergence, near)))]
        )
    torch.testing.assert_close(
        torch.from_numpy(table.table("units").values), torch.tensor(rows).double(), rtol=1e-4, atol=1e-7
    )


def test_a_heavy_divergence_makes_all_units_of_a_network_passive() -> None:
    data = data_set("a", size=(16, 16))
    task = ck.Task("a", data, "vae_conv", "decoder", size=16, kwargs={"latent": 4})
    fit = quick(steps=60, lr=0.003).fit([task], [ck.use("beta_vae", beta=500.0)])
    table = ck.measure(fit.tasks["a"], data.test, ["posterior_collapse"], layers=["latent"])
    assert table["units/passive"].value == 4 and table["units/varying"].value == 0


def test_other_outputs_and_several_layers_are_refused() -> None:
    metric = PosteriorCollapse()
    for outputs in ({"x": torch.zeros(2, 3)}, {"x": torch.zeros(2, 4, 1, 1)}, {"x": OUTPUT, "y": OUTPUT}):
        with pytest.raises(DataError) as caught:
            metric.update(metric.init(), outputs)
        assert isinstance(caught.value, CompatkitError) and caught.value.subject == "x"
