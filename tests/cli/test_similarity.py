"""similarity: output for people and programs, pictures, controls, every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick, write_pack

import compatkit as ck

LEFT, RIGHT = "digits/left.extractor", "digits/right.extractor"
HEADS = "digits/left.head", "digits/right.head"
LAYERS = ("--layers", "layer?", "--layers", "fc")


def test_layers_of_two_networks_are_compared(run: Any, parts: Path, tmp_path: Path) -> None:
    file = tmp_path / "map.png"
    words = ("similarity", f"{LEFT}+{HEADS[0]}", f"{RIGHT}+{HEADS[1]}", *LAYERS, "--batch-size", 7)
    said = run(*words, "--controls", "--png", file, "--json")
    assert said.code == 0 and said.err == ""
    registry, data = ck.Registry.open(parts), ck.data.load(parts.parent / "left.npz")
    networks = [registry.recombine(one, head) for one, head in zip((LEFT, RIGHT), HEADS, strict=True)]
    names = ["layer?", "fc"]
    direct = ck.measure(networks[0], data, ["cka", "procrustes"], layers=names, other=networks[1]).to_json()
    for name, table in direct["results"].items():
        assert said.json["results"][name]["axes"] == table["axes"]
        for cell, expected in zip(said.json["results"][name]["cells"], table["cells"], strict=True):
            assert cell["value"] == pytest.approx(expected["value"], abs=1e-5)
    pairs = (said.json["results"][name]["cells"] for name in ("cka", "procrustes"))
    least = [min(one["value"], other["value"]) for one, other in zip(*pairs, strict=True)]
    assert [one["value"] for one in said.json["smaller"]["cells"]] == least
    assert set(said.json["controls"]) == {"shuffled", "untrained"}
    shuffled = said.json["controls"]["shuffled"]["cka"]["cells"]
    assert all(abs(one["value"]) < 0.2 for one in shuffled)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_three_parts_of_a_vae_are_joined(run: Any, tmp_path: Path) -> None:
    data, kwargs = data_set("noise"), {"latent": 2, "widths": [8], "decoder_widths": [6]}
    write_pack(tmp_path, data)
    fit = quick(steps=1).fit(
        [ck.Task("a", data, "vae_dense", "decoder", size=12, kwargs=kwargs)], ["beta_vae"]
    )
    parts = ck.Registry.init(tmp_path / "parts").publish(fit, prefix="vae")
    whole = "+".join(parts[f"a.{role}"] for role in ("encoder", "latent", "decoder"))
    layers = ("encoder", "adapters.0", "decoder.dense1")
    words = [word for layer in layers for word in ("--layers", layer)]
    said = run(
        *("--registry", tmp_path / "parts", "similarity", whole, whole, *words, "--controls", "--json"),
        *("--data", tmp_path / "noise.npz", "--metric", "cka"),
    )
    assert said.code == 0 and len(said.json["left"]) == 3
    table = said.json["results"]["cka"]
    assert table["axes"]["this"] == list(layers)
    assert [table["cells"][place]["value"] for place in (0, 4, 8)] == pytest.approx([1, 1, 1])
    untrained = said.json["controls"]["untrained"]["cka"]["cells"]
    assert untrained[0]["value"] < 1, "the two are drawn from different seeds"


@pytest.mark.usefixtures("parts")
def test_people_get_grids(run: Any) -> None:
    said = run("similarity", LEFT, LEFT, "--layers", "layer1*", "--metric", "cka", "--images", 20)
    assert said.code == 0 and "20 images" in said.out and "cka: unbiased" in said.out and "1.00" in said.out
    assert "smaller" not in said.out


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((LEFT, HEADS[0], *LAYERS), "takes features"),
        ((LEFT, RIGHT, "--layers", "layr1"), "no layer 'layr1'"),
        ((LEFT, RIGHT, "--layers", "layer1", "--metric", "ckaa"), "cka"),
        ((LEFT, RIGHT, "--layers", "layer1", "--set", "svcca.share=1"), "--set expects METRIC.NAME=VALUE"),
        ((LEFT, RIGHT, "--layers", "layer1", "--png", "missing/map.png"), "missing"),
        ((LEFT, RIGHT), "--layers"),
        (
            (LEFT, RIGHT, "--layers", "layer1", "--metric", "cross_correlation", "--flatten", "pooled"),
            "'cross_correlation'",
        ),
        ((LEFT, RIGHT, "--layers", "layer1", "--device", "tpu9"), "'tpu9'"),
    ],
)
def test_refusals(run: Any, words: tuple[str, ...], message: str) -> None:
    said = run("similarity", *words)
    assert said.code in (2, 4) and message in " ".join(said.err.split())


@pytest.mark.usefixtures("parts")
def test_batches_are_those_asked_for(run: Any) -> None:
    words = (
        "similarity",
        LEFT,
        RIGHT,
        "--layers",
        "layer1",
        "--metric",
        "minibatch_cka",
        "--flatten",
        "pooled",
    )
    told = run(*words, "--images", 20, "--batch-size", 10, "--json").json["results"]["minibatch_cka"]
    assert "2 of 10" in told["estimator"] and "pooled" in told["estimator"]
