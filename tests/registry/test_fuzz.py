"""Random damage and random malice: only errors of ours, no hang, nothing outside the root, nothing changed.

An ordinary run tries about 1,500 cases, ``pytest -m slow tests/registry/test_fuzz.py`` 100,000, and with
``COMPATKIT_ATTACK=10`` ten times as many. ``COMPATKIT_FUZZ_SEED`` chooses others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from fuzzing import Bench, agree, changed, count_of, lines
from hostile import edited, weights
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SEED = os.environ.get("COMPATKIT_FUZZ_SEED", "0")
DOCUMENTS = ("manifest", "weights", "result", "move", "tombstone", "compatkit.json", "signature")
LINES = ("version", "alias", "evidence")
KINDS = (*DOCUMENTS, *LINES)
BLOBS = ("manifest", "weights", "result")
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs the timers of POSIX"),
    pytest.mark.case("E1"),
]


def sizes(ordinary: int) -> pytest.MarkDecorator:
    """Let a test try ``ordinary`` cases, or its share of a long run."""
    long = pytest.param(None, marks=[pytest.mark.slow, pytest.mark.timeout(0)], id="long")
    return pytest.mark.parametrize("count", [pytest.param(ordinary, id="short"), long])


KEPT: list[Bench] = []


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One registry for all tests, and another one after a case that failed."""
    if not KEPT or not KEPT[-1].whole:
        KEPT.append(Bench(tmp_path_factory.mktemp("bench")))
    assert KEPT[-1].whole
    return KEPT[-1]


def tries(
    count: int | None,
    ordinary: int,
    what: str,
    attempt: Callable[[random.Random], bytes],
    hold: Callable[[bytes], Any],
) -> int:
    """Make and try cases; return for how many ``hold`` said yes. The failing case is reported."""
    result = 0
    for number in range(count or count_of(ordinary)):
        data = attempt(random.Random(f"{SEED} {what} {number}"))
        try:
            result += bool(hold(data))
        except BaseException as error:
            raise AssertionError(
                f"{what}, case {number}: {type(error).__name__}: {error}; {data[:2000]!r}"
            ) from error
    return result


def draws(
    count: int | None, ordinary: int, cases: st.SearchStrategy[Any], hold: Callable[[Any], Any]
) -> None:
    """Try cases that hypothesis draws, and lets shrink where one fails."""
    most = count or count_of(ordinary)
    quiet = settings(
        max_examples=most,
        deadline=None,
        database=None,
        derandomize=count is not None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate, Phase.shrink],
    )
    quiet(given(cases)(hold))()


@sizes(20)
@pytest.mark.case("A9", "C6")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_in_place(bench: Bench, kind: str, count: int | None):
    others = list(bench.valid.values())
    tries(
        count,
        20,
        kind,
        lambda numbers: edited(bench.valid[kind], numbers, others),
        lambda data: bench.case({bench.files[kind]: data}),
    )


@sizes(40)
@pytest.mark.parametrize("kind", BLOBS)
def test_damaged_and_published_under_its_right_digest(bench: Bench, kind: str, count: int | None):
    others = list(bench.valid.values())
    tries(
        count,
        40,
        f"{kind} with its digest",
        lambda numbers: edited(bench.valid[kind], numbers, others),
        lambda data: bench.case(bench.consistent(kind, data)),
    )


@sizes(20)
@pytest.mark.case("E2", "E4", "B1")
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_that_were_changed_in_their_structure(bench: Bench, kind: str, count: int | None):
    body = bench.valid["weights"][-26:]

    def hold(text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        if kind == "weights":
            data = len(data).to_bytes(8, "little") + data + body
        bench.case(bench.consistent(kind, data))

    draws(count, 20, changed(bench.document(kind)), hold)


@sizes(15)
@pytest.mark.case("B1", "B2", "B6")
@pytest.mark.parametrize("kind", LINES)
def test_lines_of_any_fragments(bench: Bench, kind: str, count: int | None):
    draws(count, 15, lines, lambda data: bench.case({bench.files[kind]: data}))


@sizes(500)
@pytest.mark.case("A3", "A4", "A5")
def test_what_is_accepted_means_the_same_to_the_safetensors_library(count: int | None):
    valid = [weights(value, size) for value, size in ((1, 16), (2, 0), (3, 5))]
    accepted = tries(
        count,
        500,
        "tensor file",
        lambda numbers: edited(numbers.choice(valid), numbers, valid) if numbers.random() < 0.9 else valid[0],
        agree,
    )
    assert accepted > 20


@sizes(500)
@pytest.mark.case("A3", "A4", "A5")
def test_headers_that_were_changed_in_their_structure_mean_the_same_to_the_safetensors_library(
    bench: Bench, count: int | None
):
    body, document = bench.valid["weights"][-26:], bench.document("weights")
    seen: list[bool] = []

    def hold(text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        seen.append(agree(len(raw).to_bytes(8, "little") + raw + body))

    draws(count, 500, changed(document), hold)
    assert sum(seen) > 5
