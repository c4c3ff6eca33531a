"""rank: the table for people, JSON for programs, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.usefixtures("parts")
def test_extractors_are_ranked_for_a_data_set(run: Any, parts: Any) -> None:
    target = str(parts.parent / "right.npz")
    result = run("rank", "digits/*.extractor", "--data", target, "--examples", 24)
    assert result.code == 0, result.err
    assert "digits/left.extractor@1.0.0" in result.out and "from scratch" in result.out
    assert "2 extractors: a rank correlation means little" in result.out
    advice = run("rank", "digits/*.extractor", "--data", target, "--examples", 24, "--json").json["advice"]
    assert advice and result.out.endswith(f"\n{advice}\n")
    document = run(
        "rank", "digits/*.extractor", "--data", target, "--score", "logme", "--controls", "--json"
    ).json
    assert [row["score"] for row in document["rows"]] == ["logme", "logme"] and document["caution"]
    assert set(document["rows"][0]["beside"]) == {"permuted", "random weights"}


def test_scores_take_arrays_in_files(run: Any, tmp_path: Any) -> None:
    draw = np.random.default_rng(0)
    for name, values in (
        ("logits", draw.normal(size=(40, 5)) * [9, 3, 1, 1, 1]),
        ("labels", np.arange(40) % 3),
    ):
        np.save(tmp_path / f"{name}.npy", values)
    files = tmp_path / "logits.npy", tmp_path / "labels.npy"
    for metric in ("logme", "h_score", "leep", "nce"):
        table = run("metric", metric, "--arrays", *files, "--json").json["results"][metric]
        assert table["count"] == 40 and table["axes"]["labels"] == ["as given", "permuted"]
        assert all(cell["status"] == "ok" for cell in table["cells"])
    assert run("metric", "hessian_spectrum", "--arrays", *files).code == 2


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    "words",
    [("--data", "no-such-set"), ("--data", "digits", "--score", "logmee"), ()],
)
def test_bad_input(run: Any, words: tuple[str, ...]) -> None:
    result = run("rank", "digits/*.extractor", *words)
    assert result.code == 2 and result.out == ""


@pytest.mark.usefixtures("parts")
def test_an_alias_points_to_the_best_version(run: Any, parts: Any) -> None:
    target = ("--data", str(parts.parent / "right.npz"), "--examples", 24, "--score", "logme")
    result = run("rank", "digits/left.extractor", *target, "--versions", "--alias", "best")
    assert result.code == 0, result.err
    assert result.out.endswith("best: digits/left.extractor@1.0.0, now :best\n")
    assert run("alias", "digits/left.extractor", "best", "--json").json["version"] == "1.0.0"
    document = run("rank", "digits/left.extractor", *target, "--by", "logme", "--json").json
    assert document["best"] == "digits/left.extractor@1.0.0"
    assert run("rank", "digits/*.extractor", *target, "--alias", "best").code == 2
    assert run("rank", "digits/left.extractor", *target, "--by", "measured").code != 0  # nothing was measured
