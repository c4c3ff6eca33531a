"""metric: output for people and programs, settings, refusals."""

from __future__ import annotations

from typing import Any

import pytest

import compatkit as ck

LEFT, HEAD = "digits/left.extractor", "digits/left.head"


@pytest.mark.usefixtures("parts")
def test_metrics_share_a_pass_and_are_printed(run: Any) -> None:
    result = run(
        "metric", LEFT, HEAD, "accuracy", "mutual_information_plane", "--layer", "layer1", "--layer", "fc"
    )
    assert result.code == 0 and result.err == ""
    assert "digits/left.extractor@" in result.out and "left/test, 48 images" in result.out
    assert "batch-norm policy running" in " ".join(result.out.split())
    assert "accuracy, higher is better; plug-in; of 48" in result.out
    assert "I(X;T)" in result.out and "degenerate" in result.out and "fc (softmax)" in result.out


def test_programs_get_the_same_figures(run: Any, parts: Any) -> None:
    result = run("metric", LEFT, HEAD, "accuracy", "--set", "accuracy.top=2", "--batch-size", 7, "--json")
    registry = ck.Registry.open(parts)
    data = ck.data.load(parts.parent / "left.npz")
    direct = ck.measure(
        registry.recombine(LEFT, HEAD), data, [ck.metrics.make_metric("accuracy", top=2)], batch_size=7
    )
    assert result.json["results"] == direct.to_json()["results"]
    assert result.json["settings"]["bn_policy"] == "running"
    assert result.json["results"]["accuracy@2"]["count"] == 48 and result.json["settings"]["batch_size"] == 7


@pytest.mark.usefixtures("parts")
def test_two_networks_are_compared(run: Any) -> None:
    other = "digits/right.extractor", "digits/right.head"
    words = ("metric", LEFT, HEAD, "cross_correlation", "--layer", "layer2")
    result = run(*words, "--against", *other)
    assert result.code == 0 and f"against {other[0]}@1.0.0 with {other[1]}@1.0.0" in " ".join(
        result.out.split()
    )
    document = run(*words, "--against", LEFT, HEAD, "--json").json
    assert [entry.split("@")[0] for entry in document["against"]] == [LEFT, HEAD]
    means = document["results"]["cross_correlation"]
    assert means["axes"]["pairing"] == ["direct", "matched", "shuffled"]
    constant = document["results"]["cross_correlation/constant"]["cells"][0]["value"]
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
    result = run("metric", LEFT, HEAD, *words)
    assert result.code == 2 and message in " ".join(result.err.split())


@pytest.mark.usefixtures("parts")
def test_of_a_large_table_a_part_is_printed(run: Any) -> None:
    result = run(
        "metric", LEFT, HEAD, "singular_features", "--layer", "*conv*", "--set", "singular_features.top=3"
    )
    assert result.code == 0 and "more; --json has all." in result.out
