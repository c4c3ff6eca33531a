"""Ranking extractors before training: scores, controls, what was measured, honest correlations, refusals."""

from __future__ import annotations

import math
import shutil
import sys
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from distributions import Install, install
from pretended import pretended
from scipy.stats import spearmanr
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.components.ranking import RANDOM, ExtractorScore, Ranking, spearman
from compatkit.errors import DataError, NotFound, UnknownName, UsageError
from compatkit.evaluation.metrics import TableCell

__all__ = ["install"]

CLASSES = ("0", "1", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with three extractors: two trained on the target's kind of images, one on noise without rows."""
    folder = tmp_path_factory.mktemp("rank") / "parts"
    registry = ck.Registry.init(folder)
    sets = {"near": data_set("near", seed=1), "far": data_set("far", seed=2)}
    rest = sets["far"].train.images.copy()
    rest[:] = np.random.default_rng(0).integers(0, 255, rest.shape)
    sets["noise"] = ck.data.DataSet.of(
        "noise", (rest, sets["far"].train.labels), (rest, sets["far"].test.labels), CLASSES
    )
    for name, data in sets.items():
        task = ck.Task(name, data, "resnet8_cifar", "layer2", size=12)
        registry.publish(quick(steps=16 if name == "near" else 2, lr=0.05).fit([task]), prefix="zoo")
    return folder


TARGET = data_set("target", seed=7)


def sources(reference: str) -> ck.DataSet:
    return data_set(reference.split("/")[1].split(".")[0], seed=1)


@pytest.fixture(scope="module")
def ranking(place: Path) -> Any:
    return ck.Registry.open(place).rank("zoo/*.extractor", TARGET, controls=True, sources=sources)


def test_a_ranking_is_a_table(ranking: Any) -> None:
    frame = ranking.to_dataframe()
    assert frame["value"].tolist() == [scored.cell.value for scored in ranking.rows]
    assert frame["extractor"].tolist() == [scored.extractor for scored in ranking.rows]
    for name in {name for scored in ranking.rows for name in scored.other_values}:
        expected = [
            scored.other_values[name].value if name in scored.other_values else None
            for scored in ranking.rows
        ]
        assert [None if math.isnan(value) else value for value in frame[name].tolist()] == expected
    measured = frame["measured"] if ranking.measured else []
    assert [value for value in measured if not math.isnan(value)] == [
        ranking.measured[scored.extractor][0]
        for scored in ranking.rows
        if scored.extractor in ranking.measured
    ]


def test_scores_of_another_device_are_those_of_a_cpu(place: Path, ranking: Any) -> None:
    registry = ck.Registry.open(place)
    with pretended() as pretending:
        there = registry.rank("zoo/*.extractor", TARGET, controls=True, sources=sources, device="meta")
    assert there.to_dataframe().drop(columns="seconds").equals(ranking.to_dataframe().drop(columns="seconds"))
    assert pretending.waits


def test_every_extractor_has_every_score_the_best_first(ranking: Any) -> None:
    assert {row.score for row in ranking.rows} == {"logme", "h_score", "leep", "nce", "theory_transfer"}
    assert len(ranking.rows) == 15 and ranking.examples == 48
    for score in ("logme", "leep", "theory_transfer"):
        goodness = [row.goodness for row in ranking.rows if row.score == score]
        assert goodness == sorted(goodness, reverse=True)
    assert ranking.best("logme").startswith("zoo/near.extractor@")


def test_controls_stand_beside_the_scores_and_scratch_beside_the_theory(ranking: Any) -> None:
    best = next(row for row in ranking.rows if row.score == "logme")
    assert (
        best.cell.value > best.other_values["permuted"].value
        and best.cell.value > best.other_values[RANDOM].value
    )
    theory = next(row for row in ranking.rows if row.score == "theory_transfer")
    assert theory.direction == "lower"
    assert (
        theory.cell.value < theory.other_values["from scratch"].value < theory.other_values["permuted"].value
    )
    message = str(ranking)
    assert "from scratch" in message and "theory_transfer (lower)" in message


def test_few_extractors_are_said_to_prove_little(ranking: Any) -> None:
    assert "3 extractors" in ranking.caution and "one random order in 6" in str(ranking)
    assert "no result on the target's test images yet" in str(ranking)
    assert not any(agreement.second == "measured" for agreement in ranking.agreements)


def test_scores_equal_those_of_the_metric_on_the_features(place: Path, ranking: Any) -> None:
    registry = ck.Registry.open(place)
    part = registry["zoo/near.extractor"]
    table = ck.measure(
        nn.Sequential(part.module),
        TARGET.train,
        ["logme"],
        layers=["0"],
        preprocessing=part.manifest.contract.data,
    )
    wanted = table.table("logme").at(layer="0", labels="as given").value
    row = next(
        entry for entry in ranking.rows if entry.score == "logme" and entry.extractor == part.reference
    )
    assert row.cell.value == pytest.approx(wanted)


def test_measured_transfer_is_read_from_evidence(place: Path) -> None:
    registry = ck.Registry.open(place)
    for name in ("near", "far", "noise"):
        task = registry.task(name, TARGET, extractor=f"zoo/{name}.extractor", freeze_extractor=name != "far")
        parts = registry.publish(quick(steps=20 if name == "near" else 2).fit([task]), prefix="tuned")
        extractor = parts.get(f"{name}.extractor", f"zoo/{name}.extractor")
        registry.matrix(extractor, parts[f"{name}.head"], {"*": TARGET.test}, bn_policy="running")
    ranking = registry.rank("zoo/*.extractor", TARGET, scores=["logme", "h_score"])
    hows = {name.split("@")[0]: how for name, (_, how) in ranking.measured.items()}
    assert hows["zoo/near.extractor"] == "a head on its features"
    assert hows["zoo/far.extractor"] == "fine-tuned from it"
    pairs = {(agreement.first, agreement.second): agreement for agreement in ranking.agreements}
    assert pairs["logme", "measured"].count == 3 and pairs["logme", "h_score"].count == 3
    assert ranking.best("measured") == max(ranking.measured, key=lambda name: ranking.measured[name][0])
    with_it = ranking.to_json()["measured"]
    assert set(with_it) == set(ranking.measured) and "measured: " in str(ranking)


def test_a_source_that_is_gone_leaves_its_score_undefined(place: Path) -> None:
    def gone(reference: str) -> ck.DataSet:
        raise DataError("it is gone")

    ranking = ck.Registry.open(place).rank(
        "zoo/near.extractor", TARGET, scores=["theory_transfer"], sources=gone
    )
    assert ranking.rows[0].cell.status == "undefined" and "it is gone" in str(ranking)
    with pytest.raises(DataError) as caught:
        ranking.best("theory_transfer")
    assert caught.value.subject == "theory_transfer"


def test_nothing_in_the_registry_or_the_network_changes(place: Path) -> None:
    registry = ck.Registry.open(place)
    before = {
        path: path.read_bytes() for path in place.rglob("*") if path.is_file() and "index" not in path.name
    }
    registry.rank("zoo/noise.extractor", TARGET.train, scores=["logme"], controls=True, examples=20)
    after = {
        path: path.read_bytes() for path in place.rglob("*") if path.is_file() and "index" not in path.name
    }
    assert before == after


def ranked(measured: dict[str, float] | None = None, **scores: dict[str, tuple[float, float]]) -> Ranking:
    """A ranking of scores given as extractor to value and control; ``theory`` is better where it is lower."""
    rows = [
        ExtractorScore(
            score=score,
            extractor=extractor,
            cell=TableCell(value),
            other_values={"permuted": TableCell(control)},
            direction="lower" if score == "theory" else "higher",
            seconds=0.0,
        )
        for score, values in scores.items()
        for extractor, (value, control) in values.items()
    ]
    rows.sort(key=lambda row: -(row.goodness or 0.0))
    names = dict.fromkeys(row.extractor for row in rows)
    return Ranking(
        data="target",
        examples=10,
        rows=tuple(rows),
        measured={name: (value, "a head on its features") for name, value in (measured or {}).items()},
        agreements=(),
        passes=dict.fromkeys(names, 0.1),
    )


A_FIRST, B_FIRST = {"a": (0.5, 0.1), "b": (0.3, 0.1)}, {"a": (0.3, 0.1), "b": (0.5, 0.1)}
ADVICE: dict[str, tuple[Ranking, str, list[str]]] = {
    "most scores": (
        ranked(one=A_FIRST, two=A_FIRST, three=B_FIRST, theory=B_FIRST),
        "Take a: 2 of 4 scores (one, two)",
        [],
    ),
    "as many for each": (ranked(one=A_FIRST, two=B_FIRST), "The scores disagree (", ["one: a", "two: b"]),
    "below permuted labels": (
        ranked(one={"a": (0.5, 0.6), "b": (0.3, 0.6)}),
        "The scores do not separate",
        ["one is not above its controls"],
    ),
    "side by side": (
        ranked(one={"a": (0.5, 0.1), "b": (0.49, 0.1)}),
        "The scores do not separate",
        ["one puts a and b side by side"],
    ),
    "lower is better": (ranked(theory={"a": (40.0, 50.0), "b": (45.0, 50.0)}), "Take a: 1 of 1", []),
    "all were measured": (
        ranked({"a": 0.7, "b": 0.8}, one=A_FIRST),
        "Take b: it was measured best, 0.800; next is a, 0.700.",
        [],
    ),
    "measured alike": (ranked({"a": 0.7, "b": 0.7}, one=A_FIRST), "Take a or b", []),
    "one was not measured": (ranked({"b": 0.8}, one=A_FIRST), "Take a: 1 of 1", []),
    "one extractor": (ranked(one={"a": (0.5, 0.1)}), "a is the only one: 1 of 1 scores", []),
}


@pytest.mark.parametrize("case", ADVICE)
def test_the_advice_is_one_line(case: str) -> None:
    ranking, begins, contains = ADVICE[case]
    assert ranking.advice.startswith(begins) and "\n" not in ranking.advice
    assert all(text in ranking.advice for text in contains)
    assert ranking.advice in str(ranking).splitlines() and ranking.to_json()["advice"] == ranking.advice


def test_a_degenerate_score_advises_nothing() -> None:
    ranking = ranked(one=A_FIRST)
    doubted = [
        attrs.evolve(row, cell=TableCell(row.cell.value, "degenerate", "too few")) for row in ranking.rows
    ]
    assert "one has no sound value" in attrs.evolve(ranking, rows=tuple(doubted)).advice


def test_data_sets_are_scored_once(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compatkit_plugins.metrics import theory_transfer

    scored = list[Any]()
    plain = theory_transfer.TheoryTransfer._cells
    monkeypatch.setattr(
        theory_transfer.TheoryTransfer, "_cells", lambda *args: scored.append(args) or plain(*args)
    )
    registry = ck.Registry.open(shutil.copytree(place, tmp_path / "parts"))
    near = registry.store.manifest("zoo/near.extractor")
    for name in ("more/one.extractor", "more/two.extractor"):  # as near: of the same images, prepared alike
        about = attrs.evolve(near.about, title=name)
        registry.publish(attrs.evolve(near, about=about), name, state=registry.store.load_state(near))
    images = {"one": data_set("a", seed=1), "two": data_set("b", seed=1), "other": data_set("c", seed=2)}

    def measured(*names: str) -> list[TableCell]:
        references = [f"more/{name}.extractor" if name != "other" else "zoo/near.extractor" for name in names]
        ranking = registry.rank(references, TARGET, scores=["theory_transfer"], sources=source_of)
        return [row.cell for name in references for row in ranking.rows if row.extractor.startswith(name)]

    def source_of(reference: str) -> ck.DataSet:
        return images["other" if "near" in reference else "one" if "one" in reference else "two"]

    apart = [cell for name in images for cell in measured(name)]
    scored.clear()
    assert measured(*images) == apart and len(scored) == 2
    assert apart[0] == apart[1] != apart[2]


def test_normalizations_share_one_look_at_the_pixels_and_give_the_figures_of_normalized_images(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compatkit.evaluation.preprocessing import normalize, prepare
    from compatkit_plugins.metrics import _pixels

    registry = ck.Registry.open(shutil.copytree(place, tmp_path / "parts"))
    near = registry.store.manifest("zoo/near.extractor")
    data = {
        name: attrs.evolve(near.contract.data, mean=(mean,)) for name, mean in (("one", 0.1), ("two", 0.6))
    }
    for name, images in data.items():
        manifest = attrs.evolve(near, contract=attrs.evolve(near.contract, data=images))
        registry.publish(manifest, f"more/{name}.extractor", state=registry.store.load_state(near))
    looks, plain, source = list[Any](), _pixels._products, data_set("shared", seed=8)
    monkeypatch.setattr(_pixels, "_PRODUCTS", {})
    monkeypatch.setattr(_pixels, "_products", lambda *sides: looks.append(sides) or plain(*sides))
    ranking = registry.rank("more/*.extractor", TARGET, scores=["theory_transfer"], sources=lambda _: source)
    assert len(looks) == 3  # source, target, and both
    cells = {row.extractor.split("/")[1].split(".")[0]: row.cell.value for row in ranking.rows}
    for name, images in data.items():
        sides = [prepare(split, images) for split in (source.train, TARGET.train)]
        (first, labels), (second, others) = ((normalize(side.images, images), side.labels) for side in sides)
        metric: Any = ck.metrics.make_metric("theory_transfer", source=(first, labels, CLASSES))
        table = metric.finalize(metric.update(None, second, others, torch.arange(len(others))), CLASSES)
        assert cells[name] == pytest.approx(table.at(quantity="bound").value, rel=1e-5)
    assert cells["one"] != cells["two"]


COUNTED = """
from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Result

compatkit_api = 1
CALLS = []

class Counting:
    def __init__(self, name): self.name = name
    def init(self): return 0
    def merge(self, left, right): return left + right
    def finalize(self, state):
        CALLS.append(self.name)
        if self.name == "undefined":
            raise DataError("no figure")
        text = dict(unit="1", direction="higher", estimator="sum", paper="", equation="")
        return Result(name=self.name, value=float(state), count=1, **text)

class OfLabels(Counting):
    def update(self, state, labels): return state + len(labels)

class OfImages(Counting):
    def update(self, state, images): return state + float(images.mean())

class OfFeatures(Counting):
    def update(self, state, outputs): return state + float(outputs["features"].mean())

class OfSource(OfLabels):
    def __init__(self, name, source): self.name, self.source = name, source

@hookimpl
def compatkit_metrics(register):
    register("labels", lambda: OfLabels("labels"))
    register("images", lambda: OfImages("images"))
    register("features", lambda: OfFeatures("features"))
    register("undefined", lambda: OfLabels("undefined"))
    register("of_source", lambda source: OfSource("of_source", source))
"""


def test_a_score_is_computed_once_for_all_it_depends_on(
    place: Path, tmp_path: Path, install: Install
) -> None:
    """By the arguments that a metric takes, whatever its name: features, images, or labels alone."""
    names = ["labels", "images", "features", "undefined", "of_source"]
    install("counted", {f"metrics.{name}": "zoo_counted" for name in names}, {"zoo_counted": COUNTED})
    registry = ck.Registry.open(shutil.copytree(place, tmp_path / "parts"))
    near = registry.store.manifest("zoo/near.extractor")
    changed = attrs.evolve(near.contract.data, mean=(0.1,))
    for title, contract in (
        ("same", near.contract),
        ("prepared", attrs.evolve(near.contract, data=changed)),
        ("unlabeled", attrs.evolve(near.contract, data=attrs.evolve(near.contract.data, labels=None))),
    ):
        manifest = attrs.evolve(near, about=attrs.evolve(near.about, title=title), contract=contract)
        registry.publish(manifest, f"more/{title}.extractor", state=registry.store.load_state(near))
    references = ["zoo/near.extractor", "more/*.extractor"]
    ranking = registry.rank(references, TARGET, scores=names, sources=lambda _: TARGET)
    calls = Counter(sys.modules["zoo_counted"].CALLS)
    assert calls == {"labels": 1, "images": 2, "features": 4, "undefined": 1, "of_source": 2}
    cells = {name: [row.cell for row in ranking.rows if row.score == name] for name in names}
    assert [len(cells[name]) for name in names] == [4] * 5
    assert len({cell.value for cell in cells["labels"]}) == 1 and len({c.value for c in cells["images"]}) == 2
    assert {(cell.value, cell.reason) for cell in cells["undefined"]} == {(None, "no figure")}


@pytest.mark.parametrize(
    ("patterns", "data", "settings", "error"),
    [
        ("none/*", TARGET, {}, NotFound),
        ("zoo/*.extractor", "target", {}, UsageError),
        ("zoo/*.extractor", TARGET, {"scores": ["logmee"]}, UnknownName),
        ("zoo/*.extractor", TARGET, {"scores": []}, UsageError),
        ("zoo/*.extractor", TARGET, {"examples": 1}, UsageError),
        ("zoo/*.extractor", TARGET, {"examples": "all"}, UsageError),
        ("zoo/*.extractor", TARGET, {"seed": -1}, UsageError),
        ("zoo/*.extractor", TARGET, {"scores": ["theory_transfer"], "sources": lambda item: 3}, UsageError),
    ],
)
def test_bad_input(place: Path, patterns: str, data: Any, settings: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        ck.Registry.open(place).rank(patterns, data, **settings)


def test_the_best_by_a_score_that_was_not_asked_for_or_not_measured_says_so(place: Path) -> None:
    settings = {"scores": ["logme", "cka"], "examples": 20}
    ranking = ck.Registry.open(place).rank("zoo/noise.extractor", TARGET.train, **settings)
    with pytest.raises(
        UsageError, match=r"'nce' is no score of this ranking\. It has logme, cka, and measured"
    ):
        ranking.best("nce")
    with pytest.raises(DataError, match="No extractor was measured"):
        attrs.evolve(ranking, measured={}).best("measured")
    with pytest.raises(DataError, match="no value for any"):
        ranking.best("cka")
    (compared,) = [row for row in ranking.rows if row.score == "cka"]
    assert "a score rates a single one" in compared.cell.reason


def test_rank_correlations_equal_scipys_and_chance_counts_orders() -> None:
    draw = np.random.default_rng(0)
    for count in (3, 5, 7, 30):
        left, right = draw.integers(0, 6, count).tolist(), draw.normal(size=count).tolist()
        value, chance = spearman(left, right)
        assert value == pytest.approx(spearmanr(left, right).statistic)
        if count == 5:
            orders = [
                spearman(left, [right[i] for i in permutation])[0] for permutation in permutations(range(5))
            ]
            assert chance == pytest.approx(np.mean([order >= value - 1e-9 for order in orders]))  # type: ignore[operator]
    assert spearman([1, 2, 3], [4, 5, 6]) == (pytest.approx(1), pytest.approx(1 / 6))
    assert spearman([1, 2], [1, 2]) == (None, None)
    assert spearman([1, 1, 1], [1, 2, 3]) == (None, None)
