"""Fixtures that many tests share: real data packs where they are present, small data where they are not."""

from __future__ import annotations

import gc
import itertools
import os

# One thread: small networks gain nothing from more, and two would fight over a busy machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before timm is imported: no test may wait for a network

import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import nightly
import pytest
from catalogue import Outcome, page

# Programs that are started in the background ignore Ctrl-C, and so would these tests and the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]
OUTCOMES: dict[str, list[Outcome]] = {}
"""What came out of each test of this run, for the page of the catalogue."""
COSTS: dict[str, float] = {}
"""Processor seconds of each test of this run, by node id."""
STARTED = pytest.StashKey[float]()
"""Processor seconds of the process when a test began."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--catalogue", metavar="FILE", help="Write every case, its tests and what came out.")
    parser.addoption("--processor-seconds", metavar="FILE", help="Write what each test cost, as CSV.")
    parser.addoption("--changed-since", metavar="COMMIT", help="Run only tests of rooms that differ from it.")


def collects_backward(config: pytest.Config) -> bool:
    """Return whether this process is every second worker of pytest-xdist."""
    worker: str = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(worker.removeprefix("gw")) % 2 == 1


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let half of the workers collect backward.

    pytest compiles a test file the first time that it is imported, with readable assertions, and keeps the result in
    ``__pycache__``. Workers that go in the same direction all compile all files; these here meet in the middle.
    """
    report = yield
    if isinstance(collector, pytest.Dir) and collects_backward(collector.config):
        report.result = report.result[::-1]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without a search for garbage, and leave modules and tests out of later searches: they all stay alive."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the nightly tests; leave out those of rooms that did not change, if that is asked for."""
    items.sort(key=lambda item: item.path.parts)  # one order for all workers, whichever way they collected
    nightly.mark(items)
    if commit := config.getoption("--changed-since"):
        rooms = nightly.changed_rooms(commit)
        left = [item for item in items if nightly.room(item.nodeid) not in rooms]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if nightly.room(item.nodeid) in rooms]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[STARTED] = nightly.processor_seconds()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note the cost of a test with its fixtures; that of a module's fixtures falls on the module's first test."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "teardown":
        report.processor_seconds = nightly.processor_seconds() - item.stash[STARTED]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep a test's outcome: that of its call, or of what kept it from being called."""
    if report.when == "teardown":
        COSTS[report.nodeid] = report.processor_seconds
    if report.when != "call" and report.outcome == "passed":
        return
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    test = report.nodeid.partition("[")[0]
    OUTCOMES.setdefault(test, []).append(Outcome(report.outcome, reason.removeprefix("Skipped: ")))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the pages that are asked for, in the process that sees all outcomes."""
    if hasattr(session.config, "workerinput"):
        return
    if path := session.config.getoption("--catalogue"):
        Path(path).write_text(page(OUTCOMES), encoding="utf-8")
    if path := session.config.getoption("--processor-seconds"):
        nightly.write(Path(path), COSTS)


@pytest.fixture(scope="session")
def packs() -> Path:
    """Folder of real data packs; tests that need it are skipped, and say so, where there is none."""
    for folder in (os.environ.get("COMPATKIT_DATA"), REPOSITORY.parent / "shared" / "data"):
        if folder and (Path(folder) / "mnist.npz").exists():
            return Path(folder)
    pytest.skip("no data packs: set COMPATKIT_DATA to a folder that holds mnist.npz and usps.npz")


@pytest.fixture(scope="session", autouse=True)
def no_waiting() -> Iterator[None]:
    """Do not wait for the disk: the kernel outlives every crash that these tests stage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def unused_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Paths below the tests' temporary folder at which there is nothing."""
    parent = tmp_path_factory.mktemp("unused")
    return (f"{parent}/{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def no_outside_influence(request: pytest.FixtureRequest, unused_folders: Iterator[str]) -> None:
    """Keep the user's registry, data and plugin settings out of the tests; give each test its own, empty caches.

    They are in ``tmp_path`` where the test asks for it. For the others no folder is created: most use no cache.
    """
    for name in ("REGISTRY", "CACHE", "DATA", "PLUGINS", "DISABLE_PLUGINS", "TRUST", "KEY_PASSPHRASE"):
        os.environ.pop(f"COMPATKIT_{name}", None)
    uses_files = "tmp_path" in request.fixturenames
    folder = request.getfixturevalue("tmp_path") if uses_files else next(unused_folders)
    os.environ.update(
        XDG_CACHE_HOME=f"{folder}-cache" if not uses_files else f"{folder}/cache",
        XDG_CONFIG_HOME=f"{folder}/config",
        TORCH_HOME=f"{folder}/torch",
        HF_HUB_OFFLINE="1",
    )
