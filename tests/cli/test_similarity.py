"""similarity, and metric on arrays: output for people and programs, pictures, controls, every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import data_set, quick, write_pack

import compatkit as ck

LEFT, RIGHT = "digits/left.extractor", "digits/right.extractor"
HEADS = "digits/left.head", "digits/right.head"
LAYERS = ("--layers", "layer?", "--layers", "fc")


def test_layers_of_two_networks_are_compared(run: Any, parts: Path, tmp_path: Path) -> None:
    files = tmp_path / "map.png", tmp_path / "map.html"
    words = ("similarity", f"{LEFT}+{HEADS[0]}", f"{RIGHT}+{HEADS[1]}", *LAYERS, "--batch-size", 7)
    result = run(*words, "--controls", "--png", files[0], "--html", files[1], "--json")
    assert result.code == 0 and result.err == ""
    registry, data = ck.Registry.open(parts), ck.data.load(parts.parent / "left.npz")
    networks = [registry.recombine(item, head) for item, head in zip((LEFT, RIGHT), HEADS, strict=True)]
    names = ["layer?", "fc"]
    direct = ck.measure(networks[0], data, ["cka", "procrustes"], layers=names, other=networks[1]).to_json()
    for name, table in direct["results"].items():
        assert result.json["results"][name]["axes"] == table["axes"]
        for cell, expected in zip(result.json["results"][name]["cells"], table["cells"], strict=True):
            assert cell["value"] == pytest.approx(expected["value"], abs=1e-5)
    pairs = (result.json["results"][name]["cells"] for name in ("cka", "procrustes"))
    least = [min(pair["value"], other["value"]) for pair, other in zip(*pairs, strict=True)]
    assert [item["value"] for item in result.json["smaller"]["cells"]] == least
    assert set(result.json["controls"]) == {"shuffled", "untrained"}
    shuffled = result.json["controls"]["shuffled"]["cka"]["cells"]
    assert all(abs(item["value"]) < 0.2 for item in shuffled)
    assert files[0].read_bytes().startswith(b"\x89PNG")
    page = files[1].read_text()
    assert page.count("<table") == 12 and "smaller, untrained" in page and "<script" not in page


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
    result = run(
        *("--registry", tmp_path / "parts", "similarity", whole, whole, *words, "--controls", "--json"),
        *("--data", tmp_path / "noise.npz", "--metric", "cka", "--html", tmp_path / "map.html"),
    )
    assert result.code == 0 and len(result.json["left"]) == 3
    table = result.json["results"]["cka"]
    assert table["axes"]["this"] == list(layers)
    assert [table["cells"][place]["value"] for place in (0, 4, 8)] == pytest.approx([1, 1, 1])
    untrained = result.json["controls"]["untrained"]["cka"]["cells"]
    assert untrained[0]["value"] < 1, "the two are drawn from different seeds"
    assert "adapters.0" in (tmp_path / "map.html").read_text()


@pytest.mark.usefixtures("parts")
def test_people_get_grids(run: Any) -> None:
    result = run("similarity", LEFT, LEFT, "--layers", "layer1*", "--metric", "cka", "--images", 20)
    assert (
        result.code == 0
        and "20 images" in result.out
        and "cka: unbiased" in result.out
        and "1.00" in result.out
    )
    assert "smaller" not in result.out


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
    result = run("similarity", *words)
    assert result.code in (2, 4) and message in " ".join(result.err.split())


def arrays(folder: Path, **kwargs: Any) -> list[str]:
    """Write arrays as files, and return their paths."""
    for name, value in kwargs.items():
        np.save(folder / f"{name}.npy", value)
    return [str(folder / f"{name}.npy") for name in kwargs]


def test_a_metric_of_arrays_needs_no_registry(run: Any, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    left, right = draw.normal(size=(40, 6)), draw.normal(size=(40, 9))
    a, b = arrays(tmp_path, a=left, b=right)
    result = run("metric", "cka", "--arrays", a, b, "--json")
    assert result.code == 0
    direct = ck.similarity({"array": left}, {"array": right}, ["cka"])
    assert result.json["results"] == direct.to_json()["results"]
    assert result.json["arrays"] == {"outputs": a, "other_outputs": b}
    printed = run("metric", "svcca", "--arrays", a, b, "--set", "share=0.5")
    assert printed.code == 0 and "0.5 of the variance" in printed.out


def test_layers_of_a_file_are_named(run: Any, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    path = tmp_path / "layers.npz"
    np.savez(path, first=draw.normal(size=(30, 4)), second=draw.normal(size=(30, 5)))
    result = run("metric", "procrustes", "--arrays", path, path, "--json").json["results"]["procrustes"]
    assert result["axes"] == {"this": ["first", "second"], "other": ["first", "second"]}


def test_other_metrics_take_other_arrays(run: Any, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    inputs, filters, logits, labels = arrays(
        tmp_path,
        inputs=draw.normal(size=(200, 5)) * [1, 2, 3, 4, 5],
        filters=draw.normal(size=(40, 5)),
        logits=np.eye(3)[np.arange(30) % 3],
        labels=np.arange(30) % 3,
    )
    assert (
        run("metric", "accuracy", "--arrays", logits, labels, "--json").json["results"]["accuracy"]["value"]
        == 1
    )
    for name in ("misalignment", "transfer_function", "eigenvector_match"):
        result = run("metric", name, "--arrays", inputs, filters, "--json")
        cells = result.json["results"][name]["cells"]
        assert result.code == 0 and any(cell["value"] is not None for cell in cells)


def test_arrays_that_do_not_fit_are_refused(run: Any, tmp_path: Path) -> None:
    a, b, nan, objects = arrays(
        tmp_path,
        a=np.ones((9, 2)),
        b=np.ones((8, 2)),
        nan=np.full((9, 2), np.nan),
        objects=np.array([{}], dtype=object),
    )
    cases = {
        ("cka", a): "cka takes 2 arrays: outputs, other_outputs; got 1",
        ("cka", a, b): "one row per sample",
        ("cka", a, nan): "not finite",
        ("cka", a, objects): "cannot be read",
        ("cka", a, str(tmp_path / "missing.npy")): "cannot be read",
        ("reconstruction", a): "runs a network",
        ("cka", "accuracy", a): "cannot be read",
        ("ckaa", a, b): "cka",
        ("cka", a, b, "--layer", "fc"): "--layer",
        ("cka", a, b, "--data", "mnist"): "--data",
    }
    for words, message in cases.items():
        result = run("metric", *words, "--arrays")
        assert result.code == 2 and message in " ".join(result.err.split()), words
    for words in (("cka",), ("cka", a, b)):
        few = run("metric", *words)
        assert few.code == 2 and "--arrays FILE" in " ".join(few.err.split())


def test_batches_of_arrays_and_of_networks_are_those_asked_for(run: Any, parts: Path, tmp_path: Path) -> None:
    a, b = arrays(tmp_path, a=np.random.default_rng(0).normal(size=(40, 6)), b=np.eye(40))
    message = run("metric", "minibatch_cka", "--arrays", a, b, "--batch-size", 20, "--json").json["results"]
    assert "2 of 20" in message["minibatch_cka"]["estimator"]
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
    message = run(*words, "--images", 20, "--batch-size", 10, "--json").json["results"]["minibatch_cka"]
    assert "2 of 10" in message["estimator"] and "pooled" in message["estimator"]
