"""The matrix keeps its figures, ``check`` reads them, and a changed metric makes them stale."""

from __future__ import annotations

from pathlib import Path

import pointed
import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.components import pairs
from compatkit.contracts import evidence as cells
from compatkit.contracts.manifest import function_digest
from compatkit.errors import EnvironmentFailure
from compatkit.registry.evidence import Evidence


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[ck.Registry, ck.Task]:
    registry = ck.Registry.init(tmp_path_factory.mktemp("registry") / "parts")
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=(16, 16))
    registry.publish(quick(steps=2).fit([task]), prefix="x")
    return registry, task


PAIR = ("x/a.extractor@1.0.0", "x/a.head@1.0.0")


def sides_of(registry: ck.Registry) -> list[list[ck.Component]]:
    """Return the two sides of the pair."""
    return [[registry[name]] for name in PAIR]


def matrix(measured: tuple[ck.Registry, ck.Task], **settings: int) -> ck.Matrix:
    registry, task = measured
    settings = {"batch_size": 16, **settings}
    return registry.matrix("x/*.extractor", "x/*.head", [task.data.test], **settings)  # type: ignore[arg-type]


def test_check_reads_what_the_matrix_measured(measured: tuple[ck.Registry, ck.Task]) -> None:
    registry, _ = measured
    assert registry.check("x/a.extractor", "x/a.head").evidence == "none"
    cell = matrix(measured).cells[0]
    report = registry.check("x/a.extractor", "x/a.head")
    assert report.evidence == cell.grade
    assert cell.restricted is not None
    assert f"{cell.restricted.accuracy:.3f}" in str(report)


def test_measuring_again_adds_nothing_and_another_seed_adds_one(
    measured: tuple[ck.Registry, ck.Task],
) -> None:
    registry, _ = measured
    sides = sides_of(registry)

    def count() -> int:
        return len(pairs.measured(registry.store, *sides)[PAIR])

    matrix(measured)
    before = count()
    matrix(measured)
    assert count() == before
    matrix(measured, seed=7)
    assert count() == before + 1


@pytest.mark.case("F")
def test_a_new_version_of_the_metric_makes_old_figures_stale(
    measured: tuple[ck.Registry, ck.Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix(measured)
    monkeypatch.setattr(cells, "METRIC_VERSION", "2")
    assert measured[0].check("x/a.extractor", "x/a.head").evidence == "stale"


def test_figures_are_given_even_where_they_cannot_be_kept(
    measured: tuple[ck.Registry, ck.Task], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arguments: object, **kwargs: object) -> None:
        raise EnvironmentFailure("disk full")

    monkeypatch.setattr(Evidence, "add", full)
    with pytest.warns(UserWarning, match="not kept as evidence: disk full"):
        assert matrix(measured, seed=5).cells[0].restricted is not None


def test_a_damaged_result_is_left_out_with_a_warning_that_names_the_pair(
    measured: tuple[ck.Registry, ck.Task],
) -> None:
    registry, _ = measured
    matrix(measured, seed=11)
    store = registry.store
    functions = [function_digest(registry.store.manifest(name)) for name in ("x/a.extractor", "x/a.head")]
    pointers = pointed.pointers(store, *functions)
    count = len(pointers)
    blob = store.objects.path(f"sha256:{pointers[-1].name}")
    content = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(b"damaged")
    sides = sides_of(registry)
    with pytest.warns(
        UserWarning,
        match=r"x/a.extractor@1.0.0 with x/a.head@1.0.0: a result is left out: .* match its digest.*compatkit verify",
    ):
        result = pairs.measured(store, *sides)
    assert len(result[PAIR]) == count - 1
    store.put_blob(content)
    assert len(pairs.measured(store, *sides)[PAIR]) == count
