"""Results of a row are written by several threads: a failure in any of them is told, and no result is half written."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from measured import cell

from compatkit.evaluation.records import keep
from compatkit.registry import disk
from compatkit.registry.maintenance.check import examine
from compatkit.registry.store import Store

LEFT = "value:sha256:" + "a" * 64
HEADS = 5


@attrs.frozen
class Named:
    """What ``keep`` reads of a component."""

    reference: str
    function: str


EXTRACTOR = Named("e@1.0.0", LEFT)
PARTS: Any = [
    EXTRACTOR,
    *(Named(f"h{number}@1.0.0", f"value:sha256:{number:064x}") for number in range(HEADS)),
]
ROW = [
    attrs.evolve(cell(correct=50 + number), extractor=EXTRACTOR.reference, head=part.reference)
    for number, part in enumerate(PARTS[1:])
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return Store.init(tmp_path / "parts")


def kept(store: Store) -> dict[str, int]:
    """Return the number of right answers of each recorded pair; none may be damaged."""
    results = store.evidence.results([LEFT], [part.function for part in PARTS[1:]])
    assert not any(result.error for result in results)
    return {result.head: result.figures["restricted"][1] for result in results}


ALL = {part.function: 50 + number for number, part in enumerate(PARTS[1:])}


def is_whole(store: Store) -> None:
    """Every result that can be found is complete, nothing of others is left over, and the retry records all."""
    assert kept(store).items() <= ALL.items()
    assert examine(store).sound
    assert not list((store.root / "tmp").iterdir())
    assert keep(store, PARTS, ROW) and kept(store) == ALL


def failing(at: int, error: Callable[[], BaseException]) -> tuple[Callable[[str, Path], None], list[str]]:
    """Return a hook that fails at one step of the threads, and a list with the thread that failed."""
    steps, failed = count(), list[str]()

    def step(operation: str, path: Path) -> None:
        thread = threading.current_thread()
        if operation == "unlink" or thread is threading.main_thread():
            return
        if next(steps) == at:
            failed.append(thread.name)
            raise error()

    return step, failed


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_threads_record_what_one_call_after_the_other_does(store: Store, tmp_path: Path) -> None:
    assert keep(store, PARTS, ROW) and kept(store) == ALL
    alone = Store.init(tmp_path / "alone")
    assert all(keep(alone, PARTS, [one]) for one in ROW)
    files, others = (
        {path.relative_to(each.root): path.read_bytes() for path in each.root.rglob("evidence/*/*/*/*")}
        for each in (store, alone)
    )
    assert files == others and len(files) == HEADS


def test_a_disk_that_is_full_at_any_step_of_a_thread_is_told_and_leaves_whole_results(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in count():
        store = Store.init(tmp_path / str(number))
        step, failed = failing(number, full)
        monkeypatch.setattr(disk, "step", step)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            recorded = keep(store, PARTS, ROW)
        monkeypatch.setattr(disk, "step", lambda operation, path: None)
        if not failed:
            assert recorded and not told and number > 8 * (HEADS - 1)
            break
        if not recorded:
            (one,) = told
            assert "not kept as evidence" in str(one.message) and "No space" in str(one.message)
        is_whole(store)


def test_an_error_of_the_program_in_a_thread_is_raised(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mistake(Exception):
        pass

    step, failed = failing(7, Mistake)
    monkeypatch.setattr(disk, "step", step)
    with pytest.raises(Mistake):
        keep(store, PARTS, ROW)
    monkeypatch.setattr(disk, "step", lambda operation, path: None)
    assert failed
    is_whole(store)
