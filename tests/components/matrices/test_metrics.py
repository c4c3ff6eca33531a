"""Metric plugins on the pairs of a matrix: the figures, what is kept and reused, and what is refused."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.cli import main
from compatkit.components.catalogue.results import kept_results
from compatkit.components.loading import PartLoader
from compatkit.contracts.metric_figures import MetricFigure, distinct
from compatkit.errors import PluginError, UnknownName, UsageError
from compatkit.evaluation import matrix as measuring
from compatkit.evaluation import pair_metrics
from compatkit.evaluation.metric_records import read_metrics

LEFT, RIGHT = "digits/left.extractor", "digits/right.head"
BOTH = "digits/*.extractor", "digits/*.head"
PLUGIN = '''
"""Metrics of pairs."""

import torch

from compatkit import hookimpl
from compatkit.evaluation.metrics import Result, Table, TableCell

compatkit_api = 1


class Mean:
    """Mean of a number for each image."""

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def init(self):
        return 0.0, 0

    def merge(self, left, right):
        return left[0] + right[0], left[1] + right[1]

    def finalize(self, state):
        total, count = state
        return figure(type(self).__name__.lower(), self.scale * total / count, count)


class Confidence(Mean):
    def update(self, state, logits):
        return self.merge(state, (float(logits.softmax(1).amax(1).double().sum()), len(logits)))


class Agreement(Mean):
    """Share of images that both networks say the same of."""

    def update(self, state, logits, other_logits):
        return self.merge(state, (int((logits.argmax(1) == other_logits.argmax(1)).sum()), len(logits)))


class Again(Mean):
    """Share of images that the network says the same of when it runs again on them."""

    def update(self, state, images, logits, network):
        same = network(images).argmax(1) == logits.argmax(1)
        return self.merge(state, (int(same.sum()), len(logits)))


class Failing(Mean):
    def update(self, state, logits):
        raise RuntimeError("no weather today")


class Layered(Mean):
    def update(self, state, outputs):
        return state


class Sizes(Mean):
    """A table: sums of the parameters of this network and the other one, by class."""

    def __init__(self, classes: int = 0):
        self.count = classes

    def update(self, state):
        return state

    def finalize(self, state, network, other, classes):
        names = tuple(classes) or ("none",)
        names += tuple(f"more {number}" for number in range(self.count))
        sums = [float(sum(p.double().abs().sum() for p in net.parameters())) for net in (network, other)]
        cells = tuple(TableCell(value) for value in sums for _ in names)
        return Table(
            name="sizes", axes={"network": ("this", "other"), "class": names}, cells=cells, unit="count",
            direction="none", estimator="exact", count=1, paper="none", equation="none",
        )


def figure(name, value, count):
    return Result(
        name=name, value=value, unit="1", direction="higher", estimator="plug-in", count=count, paper="none",
        equation="none",
    )


@hookimpl
def compatkit_metrics(register):
    for kind in (Confidence, Agreement, Again, Failing, Layered, Sizes):
        register(kind.__name__.lower(), kind)
'''


@pytest.fixture(scope="module")
def tests() -> list[ck.Split]:
    return [data_set(name, seed=seed).test for seed, name in enumerate(("left", "right"))]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks trained together."""
    root = tmp_path_factory.mktemp("template") / "parts"
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]
    ck.Registry.init(root).publish(quick(steps=2).fit(tasks, ["identical_init"]), prefix="digits")
    return root


@pytest.fixture
def registry(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ck.Registry:
    plugin = template.parent / "weather.py"  # one place: a module is imported once
    plugin.write_text(PLUGIN)
    monkeypatch.setenv("COMPATKIT_PLUGIN_FILES", str(plugin))
    return ck.Registry.open(shutil.copytree(template, tmp_path / "parts"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Metrics that really ran, in order: once for each pair."""
    started: list[str] = []
    conclude = pair_metrics.Meter.conclude

    def counting(meter: pair_metrics.Meter) -> None:
        started.append(meter.asked.label)
        conclude(meter)

    monkeypatch.setattr(pair_metrics.Meter, "conclude", counting)
    yield started


def figures(cell: ck.Cell) -> dict[str, MetricFigure]:
    return {figure.name: figure for figure in cell.metrics}


def run(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def counts(matrix: ck.Matrix) -> dict[str, int]:
    return matrix.settings["cells"]["metrics"]


@pytest.mark.parametrize("policy", ["batch", "running", "reestimate", "mix:16"])
def test_figures_are_those_of_the_recombined_network(
    registry: ck.Registry, tests: list[ck.Split], policy: str
) -> None:
    names = ["confidence", "agreement", "again", "accuracy", "sizes"]
    size = 16 if policy in ("batch", "running") else 256  # recombine estimates in batches of 256
    matrix = registry.matrix(*BOTH, tests, bn_policy=policy, batch_size=size, metrics=names)
    images = dict(zip(("left", "right"), tests, strict=True))
    for cell in matrix:
        side = cell.extractor.split("/")[1].split(".")[0]
        data = {"data": images[side]} if policy in ("reestimate", "mix:16") else {}
        network, own = (
            registry.recombine(cell.extractor, head, bn_policy=policy, **data)
            for head in (cell.head, f"digits/{side}.head")
        )
        measured = ck.measure(network, images[side], names, other=own, batch_size=size, seed=0)
        expected = {
            (f"{name}[{', '.join(axis)}]" if axis else name): found.value
            for name, result in measured.items()
            for axis, found in (result if name == "sizes" else [((), result)])
        }
        if [label.name for label in registry[cell.head].labels] != list(images[side].classes):
            del expected["accuracy"]  # labels of images count the classes of the images there
        assert {name: figures(cell)[name].value for name in expected} == pytest.approx(expected, abs=1e-5)
        assert len(expected) in (len(cell.metrics), len(cell.metrics) - 1)
        assert cell.restricted is not None and cell.unrestricted is not None
        assert figures(cell)["accuracy"].value == cell.unrestricted.accuracy
        assert {figure.status for figure in cell.metrics} == {"ok"}
        if cell.own:
            assert figures(cell)["agreement"].value == 1
        if policy != "batch":  # a second run sees other batch statistics only if images were left out
            assert figures(cell)["again"].value == 1


def test_a_head_of_other_classes_is_measured_on_the_images_that_it_knows(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    # the classes of the images in another order, and one that the head does not know
    classes = (*reversed(tests[0].classes[1:]), "never seen")
    order = {name: place for place, name in enumerate(classes)}
    labels = [order.get(tests[0].classes[label], len(classes) - 1) for label in tests[0].labels]
    renamed = attrs.evolve(tests[0], labels=torch.tensor(labels).numpy(), classes=classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = registry.matrix(
            LEFT, RIGHT, {"*": renamed}, bn_policy="running", metrics=["accuracy", "sizes"]
        )
    (cell,) = matrix.cells
    assert cell.unrestricted is not None and cell.unrestricted.count < len(renamed)
    found = figures(cell)
    assert (found["accuracy"].value, found["accuracy"].count) == (
        cell.unrestricted.accuracy,
        cell.unrestricted.count,
    )
    assert [name for name in found if name.startswith("sizes[this")] == [
        f"sizes[this, {name}]" for name in tests[0].classes
    ]


def test_figures_are_kept_and_no_network_runs_again(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registry.matrix(*BOTH, tests, metrics=["confidence", "agreement"])
    assert counts(first) == {"taken": 0, "measured": 8}
    monkeypatch.setattr(PartLoader, "load", lambda *args: pytest.fail("a part was loaded"))
    again = registry.matrix(*BOTH, tests, metrics=["confidence", "agreement"])
    assert counts(again) == {"taken": 8, "measured": 0}
    assert again.cells == first.cells
    # neither a check nor a matrix of accuracies takes them for something else, and none is called damaged
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = registry.matrix(*BOTH, fill="none")
        assert registry.check(LEFT, RIGHT).evidence == first.cell(LEFT, RIGHT).grade
        shown = kept_results(registry.store, {})
    assert (len(shown), shown.damaged) == (4, 0)  # the catalogue
    assert plain.cells == tuple(attrs.evolve(cell, metrics=()) for cell in first.cells)
    assert registry.matrix(*BOTH, fill="none", metrics=["agreement"]).to_numpy(
        "metric_agreement"
    ).tolist() == (first.to_numpy("metric_agreement").tolist())


def test_only_what_is_missing_runs_and_the_accuracies_stand(
    registry: ck.Registry, tests: list[ck.Split], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = registry.matrix(*BOTH, tests)
    empty = registry.matrix(*BOTH, tests, fill="none", metrics=["confidence"])
    assert counts(empty) == {"taken": 0, "measured": 0, "missing": 4} and not ran
    assert {figure.status for cell in empty for figure in cell.metrics} == {"missing"}
    registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"])
    assert ran == ["confidence"]
    whole = measuring._cell

    def another(*args: Any) -> ck.Cell:
        cell = whole(*args)
        return attrs.evolve(cell, restricted=attrs.evolve(cell.restricted, accuracy=0.125, correct=6))

    monkeypatch.setattr(measuring, "_cell", another)  # another machine
    both = registry.matrix(*BOTH, tests, metrics=["confidence", "agreement"])
    assert sorted(ran[1:]) == ["agreement"] * 4 + ["confidence"] * 3
    assert counts(both) == {"taken": 1, "measured": 7}
    assert both.settings["cells"]["taken"] == 4
    assert [cell.restricted for cell in both] == [cell.restricted for cell in plain]


def test_settings_and_conditions_are_part_of_the_key(
    registry: ck.Registry, tests: list[ck.Split], ran: list[str]
) -> None:
    scaled: dict[str, Any] = {"confidence": {"scale": 2.0}}
    plain = registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"]).cells[0]
    double = registry.matrix(LEFT, RIGHT, tests, metrics=scaled).cells[0]
    assert double.metrics[0].value == 2 * (plain.metrics[0].value or 0)
    assert double.metrics[0].metric == "confidence(scale=2.0)"
    registry.matrix(LEFT, RIGHT, tests, metrics=scaled)
    registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"], bn_policy="running")
    assert ran == ["confidence", "confidence(scale=2.0)", "confidence"]


def test_another_version_of_the_plugin_makes_figures_stale_until_they_are_filled(
    registry: ck.Registry, tests: list[ck.Split], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"]).cells[0].metrics[0]
    find = pair_metrics.find
    monkeypatch.setattr(pair_metrics, "find", lambda *names: attrs.evolve(find(*names), version="2"))
    matrix = registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"])
    (stale,) = matrix.cells[0].metrics
    assert (stale.value, stale.status, stale.plugin) == (before.value, "stale", before.plugin)
    assert stale.reason.endswith(f"changed from version {before.plugin.split()[1]} to 2")
    assert counts(matrix) == {"taken": 0, "measured": 0, "stale": 1}
    assert matrix.cells[0].state == "measured"
    filled = registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"], fill="stale")
    assert filled.cells[0].metrics[0] == attrs.evolve(before, plugin="weather.py 2")
    assert ran == ["confidence"] * 2


def test_a_metric_that_fails_loses_no_accuracy(registry: ck.Registry, tests: list[ck.Split]) -> None:
    with pytest.warns(UserWarning, match=r"failing has no figure of 4 pairs.*no weather today"):
        matrix = registry.matrix(*BOTH, tests, metrics=["failing", "confidence"])
    for cell in matrix:
        failing, confidence = cell.metrics
        assert cell.state == "measured" and confidence.status == "ok"
        assert failing.status == "failed" and failing.value is None
        assert "no weather today" in failing.reason and "weather.py" in failing.reason
    assert counts(matrix) == {"taken": 0, "measured": 4, "failed": 4}
    again = registry.matrix(*BOTH, tests)
    assert again.settings["cells"] == {"taken": 4, "measured": 0}
    with pytest.warns(
        UserWarning, match=r"sizes\(classes=500\) has no figure of 1 pair, .* up to 1,000 of a pair"
    ):
        registry.matrix(LEFT, RIGHT, tests, metrics={"sizes": {"classes": 500}})


def test_a_metric_of_two_networks_says_where_there_is_no_own_one(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    registry.store.withdraw("digits/left.head", "1.0.0", "for a while")
    with pytest.warns(UserWarning, match="agreement has no figure of 1 pair"):
        (cell,) = registry.matrix(LEFT, RIGHT, tests, metrics=["agreement", "confidence"]).cells
    assert [figure.status for figure in cell.metrics] == ["failed", "ok"] or cell.bound is not None
    assert "no own head" in figures(cell)["agreement"].reason


@pytest.mark.parametrize(
    ("metrics", "error", "subject"),
    [
        (["confidenze"], UnknownName, "metrics.confidenze"),
        ("confidence", UsageError, "confidence"),
        ([3], UsageError, 3),
        ({"confidence": 3}, UsageError, 3),
        (["confidence", "confidence"], UsageError, "confidence"),
        (["layered"], UsageError, "layered"),
        (["cka"], UsageError, "cka"),
        ({"confidence": {"scale": float("nan")}}, UsageError, "confidence"),
    ],
)
def test_what_does_not_apply_is_refused_before_images_are_read(
    registry: ck.Registry, metrics: Any, error: type[UsageError], subject: object
) -> None:
    with pytest.raises(error) as caught:
        registry.matrix(*BOTH, metrics=metrics)
    assert caught.value.subject == subject


def test_an_unknown_setting_is_refused(registry: ck.Registry) -> None:
    with pytest.raises(PluginError, match="scale"):
        registry.matrix(*BOTH, metrics={"confidence": {"scales": 2}})
    with pytest.raises(UnknownName, match="Did you mean 'confidence'"):
        registry.matrix(*BOTH, metrics=["confidenc"])


def test_workers_give_and_keep_the_same_figures(registry: ck.Registry, tests: list[ck.Split]) -> None:
    here = registry.matrix(*BOTH, tests, metrics=["confidence", "agreement"], record=False)
    registry.matrix(LEFT, RIGHT, tests)
    there = registry.matrix(*BOTH, tests, metrics=["confidence", "agreement"], launcher="sequential")
    assert [cell.metrics for cell in there] == [cell.metrics for cell in here]
    kept = registry.matrix(*BOTH, metrics=["confidence", "agreement"], fill="none")
    assert counts(kept) == {"taken": 8, "measured": 0}
    assert [cell.metrics for cell in kept] == [cell.metrics for cell in here]


def test_reports_have_the_figures(registry: ck.Registry, tests: list[ck.Split], tmp_path: Path) -> None:
    plain = registry.matrix(*BOTH, tests)
    matrix = registry.matrix(*BOTH, tests, metrics=["confidence", "accuracy"])
    assert ck.Matrix.from_json(matrix.to_json()) == matrix
    assert "metrics" not in json.loads(plain.to_json())["cells"][0]
    assert ck.Matrix.from_json(plain.to_json()) == plain
    values = matrix.to_numpy("metric_confidence")
    assert values.tolist() == [
        [figures(matrix.cell(row.reference, column.reference))["confidence"].value for column in matrix.heads]
        for row in matrix.extractors
    ]
    frame = matrix.to_dataframe()
    assert frame["metric_confidence"].tolist() == values.ravel().tolist()
    assert "metric_confidence" not in plain.to_dataframe()
    header = matrix.to_csv().splitlines()[0].split(",")
    assert header[-2:] == ["metric_confidence", "metric_accuracy"]
    assert plain.to_csv().splitlines()[0].split(",") == header[:-2]
    with pytest.raises(UnknownName, match="metric_confidence"):
        matrix.to_numpy("metric_confidenc")
    shown = f"{figures(matrix.cells[0])['confidence'].value:.4g}"
    page = matrix.to_html(tmp_path / "matrix.html").read_text()
    for text in (page, matrix.to_markdown()):
        assert shown in text and "metric confidence of weather.py" in text
    changes = matrix.compare(plain)
    assert len(changes.to_dataframe()) == 4
    filtered = matrix.filter(heads="digits/right.head")
    assert [cell.metrics for cell in filtered] == [matrix.cells[1].metrics, matrix.cells[3].metrics]


def test_the_command_gives_the_same(
    registry: ck.Registry,
    tests: list[ck.Split],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = registry.matrix(*BOTH, tests, metrics={"confidence": {"scale": 2}, "agreement": {}})
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(registry.store.root))
    asked = ["matrix", *BOTH, "--fill", "none", "--metric", "confidence", "--metric", "agreement"]
    assert run([*asked, "--set", "confidence.scale=2", "--json"]) == 0
    printed = ck.Matrix.from_json(capsys.readouterr().out)
    assert [cell.metrics for cell in printed] == [cell.metrics for cell in matrix]
    assert run([*asked, "--set", "confidence.scale=2"]) == 0
    assert "confidence(scale=2), agreement: 8 taken, 0 measured now" in capsys.readouterr().out
    assert run([*asked, "--set", "accuracy.top=2"]) == 2
    assert run(["matrix", *BOTH, "--set", "confidence.scale=2"]) == 2
    assert run(["matrix", *BOTH, "--metric", "confidenc"]) == 2
    assert "Did you mean 'confidence'" in capsys.readouterr().err


def test_damaged_figures_are_left_out(registry: ck.Registry, tests: list[ck.Split]) -> None:
    cell = registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"]).cells[0]
    metric = pair_metrics.PairMetric.named("confidence", {})
    parts = PartLoader(registry.store)
    (extractor,), (head,) = parts.choose(LEFT, ("extractor",)), parts.choose(RIGHT, ("head",))
    (kept,) = [
        result
        for result in registry.store.evidence.results([extractor.function], [head.function])
        if result.settings["metric"] == metric.key
    ]
    assert read_metrics(kept.figures, metric, metric.plugin) == cell.metrics
    whole = kept.figures["results"][0]
    for broken in (
        {"results": []},
        {},
        {"results": [{**whole, "value": None}]},
        {"results": [{**whole, "more": 1}]},
    ):
        registry.store.evidence.add(
            extractor.function,
            head.function,
            conditions=kept.conditions,
            settings=kept.settings,
            figures=broken,
        )
        with pytest.warns(UserWarning, match="a result is left out"):
            (again,) = registry.matrix(LEFT, RIGHT, tests, metrics=["confidence"], fill="none").cells
        assert again.metrics == cell.metrics


def test_two_metrics_with_a_result_of_one_name_stay_apart() -> None:
    one, two = (MetricFigure("a", metric, 1.0, plugin="p 1") for metric in ("first", "second"))
    assert [figure.name for figure in distinct([one, two])] == ["a", "a (second of p 1)"]
