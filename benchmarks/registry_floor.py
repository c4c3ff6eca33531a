"""Rows of the floor about the files of a registry: publishing, verification."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import attrs
import registry_bare as bare
from contest import compete, expect, ratios
from registry_large import write_versions
from registry_settings import Settings

from compatkit.contracts.manifest import to_bytes
from compatkit.registry.maintenance.check import examine
from compatkit.registry.store import Store

VERSIONS = 5_000
"""Versions of the registry that is verified."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder, and let caches lie in it."""
    with tempfile.TemporaryDirectory(prefix="floor-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        yield Path(folder)


def processor(*works: Callable[[], object]) -> list[float]:
    """Return the processor seconds of each of several calls, made one after the other."""
    taken: list[float] = []
    for work in works:
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return taken


def publish_small(rounds: int) -> list[float]:
    """Return the milliseconds on the clock that a publish of 1 MB takes beyond a bare one."""
    return [1e3 * (ours - plain) for plain, ours in _published(rounds, time.perf_counter)]


def publish_small_processor(rounds: int) -> list[float]:
    """Return the milliseconds of the processor that a publish of 1 MB takes beyond a bare one."""
    return [1e3 * (ours - plain) for plain, ours in _published(rounds, time.process_time)]


def _published(rounds: int, clock: Callable[[], float]) -> Iterator[tuple[float, float]]:
    """Yield the seconds of a bare publish and of ours; folders that stay are as old as those of a registry in use."""
    from registry_small import NETWORK, SPLIT
    from registry_weights import SETTLED, publish_extractor

    with scratch() as folder:
        part = publish_extractor(Settings(folder, 1, 0, 1, "", ""), NETWORK, SPLIT)
        store, plain = Store.init(folder / "ours"), folder / "bare"
        plain.mkdir()
        time.sleep(SETTLED)
        state, document = part.module.state_dict(), json.loads(to_bytes(part.manifest))
        first = next(tensor for tensor in state.values() if tensor.is_floating_point())
        parameters = part.manifest.payload.parameters

        def ours(name: str) -> None:
            payload = store.put_state(state, parameters=parameters)
            store.publish(name, attrs.evolve(part.manifest, payload=payload))

        def rival(name: str) -> None:
            bare.publish_small(plain, name, state, document)

        for number in count():
            taken: list[float] = []
            for work in (rival, ours):
                first.view(-1)[0] = 1 + number
                start = clock()
                work(f"bench/net{number}")
                taken.append(clock() - start)
            if number > rounds:
                return
            if number:  # the first is to warm up
                yield taken[0], taken[1]


def publish_large(rounds: int) -> list[float]:
    """Return our time on the clock of a publish of 94 MB by that of the minimum of a durable, verified write."""
    from registry_weights import publish_contestants, publish_extractor

    with scratch() as folder:
        settings = Settings(folder, rounds, 0, 1, "resnet50", "layer4")
        part = publish_extractor(settings, settings.network, settings.cut)
        return ratios(compete(publish_contestants(part, folder / "publish"), rounds, 0), "ours", "bare best")


def verify(rounds: int) -> list[float]:
    """Return the processor time of a verification by that of one read of all files."""
    with scratch() as folder:
        store = write_versions(folder / "parts", VERSIONS)
        times = [processor(lambda: read_all(store.root), lambda: _verified(store)) for _ in range(rounds + 1)]
        return [ours / read for read, ours in times[1:]]


def read_all(root: Path) -> int:
    """Read every file below a folder; return the bytes."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                total += len(file.read())
    return total


def _verified(store: Store) -> None:
    report = examine(store)
    expect("sound", report.sound, True)
