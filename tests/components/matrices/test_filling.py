"""A matrix asked of a trained registry: what is taken, what is measured, what is kept, and what is said of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_components import extractor, head, shared
from small import data_set, quick, write_packs

import compatkit as ck
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.loading import PartLoader
from compatkit.components.matrices import cells as table
from compatkit.contracts import evidence as cells
from compatkit.contracts.evidence import Cell
from compatkit.contracts.manifest import About, function_digest
from compatkit.contracts.stitch import cast
from compatkit.errors import DataError, UsageError
from compatkit.evaluation import matrix as measuring
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.prospect import promise

LEFT, RIGHT = "digits/left.extractor", "digits/right.head"
BOTH = "digits/*.extractor", "digits/*.head"
NETWORK = "resnet8_cifar", "layer2"


@pytest.fixture(scope="module")
def tests() -> list[ck.Split]:
    return [data_set(name, seed=seed).test for seed, name in enumerate(("left", "right"))]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks trained together, whose parts are tagged by their data."""
    root = tmp_path_factory.mktemp("template") / "parts"
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]
    fit = quick(steps=2).fit(tasks, ["identical_init", "dcc"])
    ck.Registry.init(root).publish(fit, prefix="digits", about=About(tags={"domain": "digits"}))
    return root


@pytest.fixture
def registry(template: Path, tmp_path: Path) -> ck.Registry:
    return ck.Registry.open(shutil.copytree(template, tmp_path / "parts"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """The pairs that were really measured, in order; the bound's own pair only where it was asked for."""
    pairs: list[tuple[str, str]] = []
    whole = measuring.measure

    def counting(*args: Any, **kwargs: Any) -> list[Cell]:
        result = whole(*args, **kwargs)
        pairs.extend((cell.extractor, cell.head) for cell in result)
        return result

    monkeypatch.setattr(measuring, "measure", counting)
    yield pairs


def counts(matrix: ck.Matrix) -> dict[str, int]:
    return matrix.settings["cells"]


def test_what_was_measured_is_taken_and_no_weight_is_read(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registry.matrix(*BOTH, tests, batch_size=16)
    assert counts(first) == {"taken": 0, "measured": 4}
    monkeypatch.setattr(PartLoader, "load", lambda *args: pytest.fail("a part was loaded"))
    again = registry.matrix(*BOTH, tests, batch_size=16)
    assert counts(again) == {"taken": 4, "measured": 0}
    assert again.cells == first.cells  # to the last finding and setting


def test_only_what_is_missing_is_measured(
    registry: ck.Registry, tests: list[ck.Split], ran: list[tuple[str, str]]
) -> None:
    registry.matrix(LEFT, RIGHT, tests)
    del ran[:]
    matrix = registry.matrix(*BOTH, tests)
    # the bound of the first row, its own head, was measured beside the pair and kept too
    assert counts(matrix) == {"taken": 2, "measured": 2}
    assert {left.split("@")[0] for left, _ in ran} == {"digits/right.extractor"}


def test_the_bound_is_found_where_its_head_is_no_column(registry: ck.Registry, tests: list[ck.Split]) -> None:
    alone = registry.matrix(LEFT, RIGHT, tests).cells[0]
    whole = registry.matrix(*BOTH, tests, fill="all", record=False)
    assert alone.bound == whole.cell(LEFT, "digits/left.head").restricted
    assert alone == whole.cell(LEFT, RIGHT)


@pytest.mark.parametrize(
    "settings",
    [
        {"bn_policy": "running"},
        {"batch_size": 16},
        {"batch_size": 16, "seed": 1},
        {"precision": "bfloat16"},
    ],
)
def test_other_conditions_are_other_cells(
    registry: ck.Registry, tests: list[ck.Split], settings: dict[str, Any]
) -> None:
    registry.matrix(LEFT, RIGHT, tests)
    assert counts(registry.matrix(LEFT, RIGHT, tests, fill="none", **settings)) == {
        "taken": 0,
        "measured": 0,
        "missing": 1,
    }
    assert counts(registry.matrix(LEFT, RIGHT, tests, **settings))["measured"] == 1
    assert counts(registry.matrix(LEFT, RIGHT, tests, **settings))["taken"] == 1


def test_what_changes_nothing_takes_the_same_cell(registry: ck.Registry, tests: list[ck.Split]) -> None:
    registry.matrix(LEFT, RIGHT, tests, bn_policy="running")
    matrix = registry.matrix(LEFT, RIGHT, tests, bn_policy="running", seed=9, batch_size=5, fill="none")
    assert counts(matrix)["taken"] == 1
    assert matrix.cells[0].settings["batch_size"] == 256  # as it was measured


def test_a_new_metric_makes_cells_stale_until_they_are_filled(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = registry.matrix(LEFT, RIGHT, tests).cells[0]
    monkeypatch.setattr(cells, "METRIC_VERSION", "2")
    matrix = registry.matrix(LEFT, RIGHT, tests)
    assert counts(matrix) == {"taken": 0, "measured": 0, "stale": 1}
    (cell,) = matrix.cells
    assert cell.state == "stale" and cell.restricted == before.restricted
    assert cell.reason == "the metric recombination_accuracy changed from version 1 to 2"
    assert registry.check(LEFT, RIGHT).evidence == "stale"
    filled = registry.matrix(LEFT, RIGHT, tests, fill="stale")
    assert counts(filled) == {"taken": 0, "measured": 1} and filled.cells[0].state == "measured"
    assert registry.check(LEFT, RIGHT).evidence == before.grade
    monkeypatch.setattr(cells, "METRIC_VERSION", "1")
    assert registry.matrix(LEFT, RIGHT, tests, fill="none").cells[0] == before  # results are never rewritten


def test_other_images_of_the_same_name_make_cells_stale(registry: ck.Registry, tests: list[ck.Split]) -> None:
    registry.matrix(LEFT, RIGHT, tests)
    images = tests[0].images.copy()
    images[0, 0, 0] ^= 1
    changed = attrs.evolve(tests[0], images=images)
    (cell,) = registry.matrix(LEFT, RIGHT, [changed]).cells
    assert cell.state == "stale" and cell.reason.startswith("the images of left/test have changed")
    assert (
        registry.matrix(LEFT, RIGHT, [tests[0].subset(30, seed=1)], fill="none").cells[0].state == "missing"
    )


def test_a_patch_keeps_its_evidence_and_its_bound_and_other_weights_do_not(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    before = registry.matrix(LEFT, RIGHT, tests).cells[0]
    for name in (LEFT, RIGHT):
        registry.store.publish(
            name, attrs.evolve(registry.store.manifest(name), about=About(title="better told"))
        )
    after = registry.matrix(LEFT, RIGHT, tests, fill="none").cells[0]
    assert after.extractor == f"{LEFT}@1.0.1" and after.restricted == before.restricted
    assert after.bound == before.bound is not None
    own = registry.matrix(LEFT, "digits/left.head", tests, fill="none").cells[0]
    assert own.own and own.state == "measured"  # the own head was trained with the release before
    blueprint = registry.store.manifest(RIGHT).blueprint
    other = attrs.evolve(blueprint, kwargs={**blueprint.kwargs, "drop_rate": 0.1})
    registry.store.publish(RIGHT, attrs.evolve(registry.store.manifest(RIGHT), blueprint=other))
    assert registry.matrix(LEFT, RIGHT, tests, fill="none").cells[0].state == "missing"


def test_a_head_that_gives_the_bound_from_now_on_makes_figures_without_one_stale(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    own = registry.store.manifest("digits/left.head")
    registry.store.withdraw("digits/left.head", "1.0.0", "for a while")
    assert registry.matrix(LEFT, RIGHT, tests).cells[0].bound is None
    registry.store.publish("digits/again.head", own)
    (cell,) = registry.matrix(LEFT, RIGHT, tests).cells
    assert cell.state == "stale" and cell.reason.startswith(
        "the bound is that of another head (none, now value:"
    )
    assert registry.matrix(LEFT, RIGHT, tests, fill="stale").cells[0].bound is not None
    registry.store.withdraw("digits/again.head", "1.0.0", "again")
    saved = registry.matrix(LEFT, RIGHT, tests, fill="none").cells[0]
    assert saved.state == "measured" and saved.bound is not None  # better known than could be measured now


def test_an_interrupted_fill_loses_nothing_that_was_measured(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch, ran: list[tuple[str, str]]
) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if what.startswith("digits/right"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        registry.matrix(*BOTH, tests, progress=stop)
    matrix = registry.matrix(*BOTH, tests)
    assert counts(matrix) == {"taken": 2, "measured": 2}
    assert {left for left, _ in ran} == {"digits/right.extractor@1.0.0"}


def test_measuring_all_anew_says_where_figures_differ(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registry.matrix(LEFT, RIGHT, tests).cells[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = registry.matrix(LEFT, RIGHT, tests, fill="all")
    assert counts(same) == {"taken": 0, "measured": 1} and same.cells[0] == first
    whole = measuring._cell

    def another(*args: Any) -> Cell:
        cell = whole(*args)
        figure = attrs.evolve(cell.restricted, accuracy=0.125, correct=6)
        return attrs.evolve(cell, restricted=figure, settings={**cell.settings, "torch": "another"})

    monkeypatch.setattr(measuring, "_cell", another)
    with pytest.warns(UserWarning, match=rf"figures differ from .*: {LEFT}@1.0.0 with .* and is 0\.1250\."):
        registry.matrix(LEFT, RIGHT, tests, fill="all")
    (cell,) = registry.matrix(LEFT, RIGHT, tests, fill="none").cells
    assert cell.restricted is not None and cell.restricted.accuracy == 0.125  # the newest
    assert "2 results are stored under this key, and they differ: accuracy 0.1250 to" in cell.findings[-1]


def test_figures_with_adapters_are_kept_under_a_key_of_their_own(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    manifest = registry.store.manifest(LEFT)
    ports, data = manifest.contract.structural.outputs, attrs.evolve(manifest.contract.data, labels=None)
    blueprint = cast("float32", data.size)  # changes nothing, and stands between all the same
    step = Adapter(blueprint, build_adapter(blueprint), ports, ports, data)
    pair = f"{LEFT}@1.0.0", f"{RIGHT}@1.0.0"
    between = {pair: (step,)}
    adapted = registry.matrix(LEFT, RIGHT, tests, adapters=between)
    assert counts(adapted)["measured"] == 1 and "cast" in adapted.cells[0].settings["adapters"]
    assert registry.check(LEFT, RIGHT).evidence == "none"
    assert registry.matrix(LEFT, RIGHT, tests, fill="none").cells[0].state == "missing"
    assert counts(registry.matrix(LEFT, RIGHT, tests, adapters=between, fill="none"))["taken"] == 1
    published = registry.publish(step, "digits/cast")
    assert function_digest(registry.store.manifest(published)) == step.function
    twice = {pair: (step, step)}
    assert registry.matrix(LEFT, RIGHT, tests, adapters=twice, fill="none").cells[0].state == "missing"


def test_without_images_a_matrix_is_of_those_that_were_measured_last(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    empty = registry.matrix(*BOTH, fill="none")
    assert counts(empty) == {"taken": 0, "measured": 0, "missing": 4}
    assert {cell.reason for cell in empty.cells} == {table.MISSING}
    measured = registry.matrix(*BOTH, tests)
    assert [cell.restricted for cell in registry.matrix(*BOTH, fill="none").cells] == [
        cell.restricted for cell in measured.cells
    ]
    registry.matrix(LEFT, RIGHT, {"*": tests[1].renamed("other/test")})  # not what it was trained on
    assert registry.matrix(LEFT, RIGHT, fill="none").cells[0] == measured.cell(LEFT, RIGHT)


def test_several_data_sets_of_which_none_is_the_extractors_own_are_told(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    for name, split in zip(("a/test", "b/test"), tests, strict=True):
        registry.matrix(LEFT, RIGHT, {"*": split.renamed(name)}, bn_policy="running")
    with pytest.raises(
        DataError, match=r"left.extractor@1.0.0 was measured on a/test, b/test, but trained on"
    ):
        registry.matrix(LEFT, RIGHT, fill="none", bn_policy="running")


def test_filters_choose_cells(
    registry: ck.Registry, tests: list[ck.Split], ran: list[tuple[str, str]]
) -> None:
    registry.matrix(LEFT, RIGHT, tests)
    del ran[:]
    stale = registry.matrix(*BOTH, tests, where="state=measured")
    assert not ran and {cell.state for cell in stale.cells} <= {"measured", "left-out"}
    best = registry.matrix(*BOTH, tests, where="recovered>=9")
    assert not best.extractors and not best.cells  # all were measured to know, and none fits
    assert ran and registry.matrix(*BOTH, tests, where="promise=none").cells == ()


def test_rows_and_columns_without_a_fitting_cell_are_left_out(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    whole = registry.matrix(*BOTH, tests)
    best = max(cell.restricted.accuracy for cell in whole.cells if cell.restricted is not None)
    matrix = registry.matrix(*BOTH, tests, where=f"accuracy>={best!r}")
    fitting = [c for c in whole.cells if c.restricted is not None and c.restricted.accuracy >= best]
    assert {cell.extractor for cell in fitting} == {part.reference for part in matrix.extractors}
    assert [cell for cell in matrix.cells if cell.state != "left-out"] == fitting
    assert all(cell.restricted is None and not cell.findings for cell in matrix.cells if cell not in fitting)
    assert matrix.settings["where"] == [f"accuracy>={best!r}"]
    assert ck.Matrix.from_json(matrix.to_json()) == matrix


@pytest.fixture
def from_packs(tmp_path: Path) -> ck.Registry:
    """A registry of networks that were trained on a part of each of two packs, ``left`` and ``right``."""
    write_packs(tmp_path, count=144)
    tasks = [
        ck.Task(
            name,
            ck.data.load_spec({"name": str(tmp_path / f"{name}.npz"), "train": 120, "test": 12}),
            *NETWORK,
        )
        for name in ("left", "right")
    ]
    registry = ck.Registry.init(tmp_path / "packed")
    registry.publish(quick(steps=2).fit(tasks), prefix="digits")
    return registry


def test_images_are_found_again_without_data(from_packs: ck.Registry) -> None:
    matrix = from_packs.matrix(*BOTH)
    assert [cell.settings["data"] for cell in matrix.cells] == ["left/test"] * 2 + ["right/test"] * 2
    assert {cell.restricted.count for cell in matrix.cells if cell.restricted} == {
        12
    }  # the subsets trained on
    assert from_packs.recombine(LEFT, RIGHT, bn_policy="reestimate").estimated["data"]["images"] == 120


def test_images_that_were_not_found_again_are_told(from_packs: ck.Registry, tmp_path: Path) -> None:
    (tmp_path / "left.npz").unlink()
    for ask in (
        lambda: from_packs.matrix(*BOTH),
        lambda: from_packs.recombine(LEFT, RIGHT, bn_policy="mix:8"),
    ):
        with (
            pytest.warns(UserWarning, match=r"left\.npz, which can no longer be loaded"),
            pytest.raises(DataError) as caught,
        ):
            ask()
        assert (caught.value.code, caught.value.subject) == (DataError.code, "digits/left.extractor@1.0.0")


def test_other_images_of_the_same_name_are_taken_with_a_warning(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path))
    write_packs(tmp_path, count=30)
    with pytest.warns(UserWarning, match="trained on other images"):
        (cell,) = registry.matrix(LEFT, RIGHT).cells
    assert cell.settings["data"] == "left/test"


def test_what_nothing_fits_is_told(registry: ck.Registry, tests: list[ck.Split]) -> None:
    with pytest.raises(UsageError, match=r"'fill' must be one of missing, .*Did you mean 'missing'"):
        registry.matrix(*BOTH, tests, fill="misssing")
    with pytest.raises(UsageError, match="Unknown bn_policy"):
        registry.matrix(*BOTH, tests, bn_policy="layer")
    with pytest.raises(UsageError, match=r"'batch_size' must be a whole number from 1 up; got 2\.5"):
        registry.matrix(*BOTH, tests, batch_size=2.5)  # type: ignore[arg-type]


def test_large_matrices_tell_no_findings(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.matrix(*BOTH, tests)
    assert all(cell.findings for cell in registry.matrix(*BOTH, tests).cells)
    monkeypatch.setattr(table, "DETAILED", 3)
    plain = registry.matrix(*BOTH, tests)
    assert not any(cell.findings for cell in plain.cells)
    assert {(cell.own, cell.promise) for cell in plain.cells} == {
        (True, "one-network"),
        (False, "shared-head"),
    }


def test_neither_torch_nor_numpy_is_needed_to_ask(registry: ck.Registry, tests: list[ck.Split]) -> None:
    registry.matrix(*BOTH, tests)
    script = (
        "import sys\nfrom compatkit.components.registry import Registry\n"
        f"found = Registry.open({str(registry.store.root)!r}).matrix(*{BOTH!r}, fill='none')\n"
        "print(found.settings['cells']['taken'], [one for one in ('torch', 'numpy') if one in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "4 []\n", done.stderr


anchors = st.lists(st.sampled_from(["initial", "dcc", "rotation", "other"]), unique=True)


@given(anchors, anchors)
def test_the_promise_of_a_cell_is_that_of_the_check(left: list[str], right: list[str]) -> None:
    from sample_components import initial

    def made(names: list[str]) -> Any:
        return tuple(initial(name) if name == "initial" else shared(name) for name in names)

    contracts = extractor(anchors=made(left)), head(anchors=made(right))
    sides = [
        frozenset((a.kind, a.digest) for a in contract.contract.protocol.anchors) for contract in contracts
    ]
    assert promise(*sides, own=False) == ck.check(*contracts).promise


def test_the_state_of_random_numbers_is_left_as_it_was(registry: ck.Registry, tests: list[ck.Split]) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    registry.matrix(*BOTH, tests)
    assert torch.equal(torch.rand(2), expected)
