"""Studies of smoke at a tiny size: halves that start as the reverse pass, all arms, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from compatkit.data import loading
from compatkit.experiments.studies import run as carry_out
from compatkit_plugins.data_sets.smoke import captured_smoke, smoke
from compatkit_plugins.networks.generative import image_autoencoder, super_resolution
from compatkit_plugins.regularizers.reverse_pass.full import reconstruct
from compatkit_studies import _smoke

TINY: dict[str, Any] = {"steps": 2, "batch_size": 4, "pre_steps": 1, "test": 4}


@pytest.fixture(autouse=True)
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smoke of two short simulations under the usual names."""
    few = {"simulations": 2, "frames": 4}
    factories = {
        "smoke": lambda **_: smoke(**few),
        "captured-smoke": lambda **_: captured_smoke(**few),
    }
    monkeypatch.setattr(loading, "providers", lambda: factories)


def test_an_encoder_from_a_generator_is_its_reverse_pass_inside_the_borders() -> None:
    torch.manual_seed(0)
    network = super_resolution(channels=(4, 4, 4, 4, 4)).eval()
    with torch.no_grad():
        for name, value in network.named_parameters():
            if name.endswith("bias"):
                value.copy_(0.1 * torch.randn_like(value))
        images = torch.rand(2, 1, 64, 64)
        made = network.generator(network.down(images))  # pyright: ignore[reportCallIssue]
        both = image_autoencoder(channels=(4, 4, 4, 4, 4)).eval()
        weights = dict(network.state_dict())
        both.load_state_dict(_smoke.as_encoder(weights) | _smoke.as_decoder(weights))
        result = both.encoder(made)  # pyright: ignore[reportCallIssue]
        wanted = F.avg_pool2d(reconstruct(network, images), 4)
        inside = (..., slice(4, 12), slice(4, 12))
        torch.testing.assert_close(result[inside], wanted[inside], atol=1e-4, rtol=1e-3)
        coded = torch.rand(2, 1, 16, 16)
        torch.testing.assert_close(both.decoder(coded), network.generator(coded))  # pyright: ignore[reportCallIssue]


def test_three_channels_are_stacked_and_averaged() -> None:
    weights = dict(super_resolution(channels=(2,) * 5).state_dict())
    gray, colored = _smoke.as_encoder(weights), _smoke.as_encoder(weights, 3)
    images = torch.rand(1, 1, 8, 8)
    first = F.conv_transpose2d(images, gray["encoder.layer1.linear.weight"], padding=1)
    again = F.conv_transpose2d(images.repeat(1, 3, 1, 1), colored["encoder.layer1.linear.weight"], padding=1)
    torch.testing.assert_close(first, again)
    assert _smoke.as_decoder(weights, 3)["decoder.body.layer6.linear.weight"].shape == (3, 2, 3, 3)


def test_figures_of_recovered_images_by_hand() -> None:
    wanted = torch.tensor([1.0, 2.0, 3.0])
    assert _smoke.relative(torch.zeros(3), wanted) == 1 and _smoke.relative(wanted, wanted) == 0
    assert _smoke.correlation(10 - 2 * wanted, wanted) == pytest.approx(-1)
    assert _smoke.correlation(torch.ones(3), wanted) is None


@pytest.mark.parametrize(
    ("number", "arms", "changes"),
    [
        ("0.8", ("rr",), {}),
        pytest.param("0.8", ("std", "pre", "untrained"), {}, marks=pytest.mark.slow),
        pytest.param("0.9", ("std", "rr", "scratch", "rr-shuffled"), {"ae_steps": 1}, marks=pytest.mark.slow),
        pytest.param("0.10", ("rr-decoder", "pre-encoder"), {"ae_steps": 1}, marks=pytest.mark.slow),
    ],
)
def test_every_study_measures_and_draws(
    tmp_path: Path, number: str, arms: tuple[str, ...], changes: dict[str, Any]
) -> None:
    saved = {"networks": str(tmp_path / "networks")}
    result = carry_out(number, tmp_path / "out", seeds=1, arms=arms, changes={**TINY, **saved, **changes})
    assert {row["arm"] for row in result["results"] if row["values"][0] is not None} == set(arms)
    assert all((tmp_path / "out" / name).stat().st_size > 0 for name in result["files"])
