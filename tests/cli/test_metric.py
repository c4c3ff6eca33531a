"""metric: output for people and programs, settings, refusals."""

from __future__ import annotations

from typing import Any

import pytest

import compatkit as ck

LEFT, HEAD = "digits/left.extractor", "digits/left.head"


@pytest.mark.usefixtures("parts")
def test_metrics_share_a_pass_and_are_printed(run: Any) -> None:
    said = run(
        "metric", LEFT, HEAD, "accuracy", "mutual_information_plane", "--layer", "layer1", "--layer", "fc"
    )
    assert said.code == 0 and said.err == ""
    assert "digits/left.extractor@" in said.out and "left/test, 48 images" in said.out
    assert "batch-norm policy running" in " ".join(said.out.split())
    assert "accuracy, higher is better; plug-in; of 48" in said.out
    assert "I(X;T)" in said.out and "degenerate" in said.out and "fc (softmax)" in said.out


def test_programs_get_the_same_figures(run: Any, parts: Any) -> None:
    said = run("metric", LEFT, HEAD, "accuracy", "--set", "accuracy.top=2", "--batch-size", 7, "--json")
    registry = ck.Registry.open(parts)
    data = ck.data.load(parts.parent / "left.npz")
    direct = ck.measure(
        registry.recombine(LEFT, HEAD), data, [ck.metrics.make_metric("accuracy", top=2)], batch_size=7
    )
    assert said.json["results"] == direct.to_json()["results"]
    assert said.json["settings"]["bn_policy"] == "running"
    assert said.json["results"]["accuracy@2"]["count"] == 48 and said.json["settings"]["batch_size"] == 7


@pytest.mark.usefixtures("parts")
def test_two_networks_are_compared(run: Any) -> None:
    other = "digits/right.extractor", "digits/right.head"
    words = ("metric", LEFT, HEAD, "cross_correlation", "--layer", "layer2")
    said = run(*words, "--against", *other)
    assert said.code == 0 and f"against {other[0]}@1.0.0 with {other[1]}@1.0.0" in " ".join(said.out.split())
    found = run(*words, "--against", LEFT, HEAD, "--json").json
    assert [one.split("@")[0] for one in found["against"]] == [LEFT, HEAD]
    means = found["results"]["cross_correlation"]
    assert means["axes"]["pairing"] == ["direct", "matched", "shuffled"]
    constant = found["results"]["cross_correlation/constant"]["cells"][0]["value"]
    assert means["cells"][0]["value"] == pytest.approx(1 - constant / 32)
    assert run(*words).code == 2


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("acuracy",), "acuracy"),
        (("accuracy", "--set", "top=2"), "--set expects METRIC.NAME=VALUE"),
        (("accuracy", "--set", "accuracy.best=2"), "no setting 'best'"),
        (("mutual_information_plane",), "need layers; name some"),
        (("mutual_information_plane", "--layer", "fcc"), "no layer 'fcc'. Did you mean 'fc'?"),
    ],
)
def test_refusals(run: Any, words: tuple[str, ...], message: str) -> None:
    said = run("metric", LEFT, HEAD, *words)
    assert said.code == 2 and message in " ".join(said.err.split())


@pytest.mark.usefixtures("parts")
def test_of_a_large_table_a_part_is_printed(run: Any) -> None:
    said = run(
        "metric", LEFT, HEAD, "singular_features", "--layer", "*conv*", "--set", "singular_features.top=3"
    )
    assert said.code == 0 and "more; --json has all." in said.out
