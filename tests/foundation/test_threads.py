"""Work in threads: results in the order of the items, few of them held, errors as they are, and forks."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest

from compatkit.foundation.threads import AHEAD, MAX_THREADS, each, processors


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_results_are_in_order(piece: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number * number

    assert list(each(work, range(100), piece)) == [number * number for number in range(100)]
    assert list(each(work, [], piece)) == []


def test_few_items_are_taken_before_results_are() -> None:
    taken: list[int] = []

    def items():
        for number in range(10_000):
            taken.append(number)
            yield number

    results = each(lambda number: number, items(), 2)
    assert next(results) == 0
    assert len(taken) <= 2 * AHEAD * MAX_THREADS + 2
    results.close()
    assert len(taken) < 200


def test_the_first_error_of_the_items_is_raised_and_the_pool_works_on() -> None:
    def work(number: int) -> int:
        time.sleep(0.01 if number == 5 else 0)
        if number >= 5:
            raise ValueError(number)
        return number

    result = each(work, range(50))
    assert [next(result) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match=r"^5$"):
        next(result)
    assert list(each(lambda number: number, range(9))) == list(range(9))


def test_there_is_one_pool_of_as_many_threads_as_processors() -> None:
    names = {entry for _ in range(3) for entry in each(lambda _: threading.current_thread().name, range(200))}
    assert 1 <= len(names) <= min(MAX_THREADS, processors())


def _squares(results: multiprocessing.SimpleQueue) -> None:
    results.put(list(each(lambda number: number * number, range(5))))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    """Worker processes of loaders are forks: threads do not come along, and a pool without them would wait for ever."""
    assert list(each(lambda number: number, range(5))) == list(range(5))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_squares, args=(results,))
    child.start()
    child.join(20)
    alive = child.is_alive()
    if alive:
        child.kill()
    assert not alive and results.get() == [0, 1, 4, 9, 16]
