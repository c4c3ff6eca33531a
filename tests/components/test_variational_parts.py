"""Encoder, mean and log-variance layers, and decoder of a VAE: stored as three components and joined again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import IncompatibleError


@pytest.fixture(scope="module")
def trained() -> ck.Fit:
    tasks = [
        ck.Task(name, data_set(name, size=(16, 16), seed=seed), model, "decoder", size=16, kwargs=kwargs)
        for seed, (name, model, kwargs) in enumerate(
            [
                ("a", "vae_conv", {"latent": 4}),
                ("b", "vae_conv", {"latent": 4}),
                ("c", "vae_dense", {"latent": 3, "widths": [8, 6], "decoder_widths": [6]}),
            ]
        )
    ]
    return quick(steps=5).fit(tasks, ["beta_vae"])


@pytest.fixture(scope="module")
def vae_parts(
    trained: ck.Fit, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ck.Registry, dict[str, str]]:
    registry = ck.Registry.init(tmp_path_factory.mktemp("vae") / "parts")
    return registry, registry.publish(trained, prefix="vae")


def test_three_components_a_network(vae_parts: tuple[ck.Registry, dict[str, str]]) -> None:
    registry, parts = vae_parts
    assert [registry[parts[f"a.{role}"]].kind for role in ("encoder", "latent", "decoder")] == [
        *("extractor", "adapter", "head")
    ]
    ports = {
        role: registry[parts[f"a.{role}"]].manifest.contract.structural for role in ("latent", "decoder")
    }
    assert ports["latent"].inputs[0].shape == ("N", 256) and ports["latent"].outputs[0].shape == ("N", 8)
    assert ports["decoder"].inputs[0].shape == ("N", 8) and ports["decoder"].outputs[0].shape == ("N", 256)
    latent = registry[parts["a.latent"]].manifest
    assert {parent.component for parent in latent.parents} == {registry[parts["a.encoder"]].digest}
    assert registry.maintenance.verify().sound


@pytest.mark.parametrize("name", ["a", "c"])
def test_joined_they_are_the_network(
    trained: ck.Fit, vae_parts: tuple[ck.Registry, dict[str, str]], name: str, tmp_path: Path
) -> None:
    registry, parts = vae_parts
    joined = registry.recombine(
        parts[f"{name}.encoder"], parts[f"{name}.decoder"], adapters=[parts[f"{name}.latent"]]
    )
    images = joined.preprocess(trained.tasks[name].task.data.test)
    torch.testing.assert_close(joined(images), trained.network(name).eval()(images))
    assert not [finding.code for finding in joined.report.findings if finding.severity == "warns"]
    whole = registry.publish(joined, f"vae/{name}-whole")
    torch.testing.assert_close(registry.load(whole)(images), joined(images))


def test_a_foreign_decoder_is_joined_with_a_warning(vae_parts: tuple[ck.Registry, dict[str, str]]) -> None:
    registry, parts = vae_parts
    joined = registry.recombine(parts["a.encoder"], parts["b.decoder"], adapters=[parts["a.latent"]])
    warned = [finding.code for finding in joined.report.findings if finding.severity == "warns"]
    assert warned == ["adapter-inserted"]


def test_without_latent_layers_or_with_other_widths_nothing_is_joined(
    vae_parts: tuple[ck.Registry, dict[str, str]],
) -> None:
    registry, parts = vae_parts
    with pytest.raises(IncompatibleError):
        registry.recombine(parts["a.encoder"], parts["a.decoder"])
    with pytest.raises(IncompatibleError):
        registry.recombine(parts["a.encoder"], parts["c.decoder"], adapters=[parts["a.latent"]])
