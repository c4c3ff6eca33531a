"""Kill a process at every step of init, publish and an alias's move; after each the registry is whole.

Run by test_durability with a folder. Prints one line a scenario: its name and the number of deaths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from registry_parts import manifest_for, put

from compatkit.errors import LayoutError
from compatkit.registry import durable
from compatkit.registry.store import Store

FIRST, SECOND = 0, 1


def dies_at(number: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that dies, without any cleaning up, before its step ``number``."""
    child = os.fork()
    if child == 0:
        left = number

        def step(operation: str, path: Path) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)

        durable.step = step
        action()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def publish(root: Path, value: int) -> str:
    store = Store.open(root)
    return str(store.publish("a/b", manifest_for(put(store, value))))


def whole(store: Store) -> list[str]:
    """Read everything that can be named; return the pinned references."""
    found = []
    for name in store.names():
        for version in store.versions(name):
            manifest = store.manifest(f"{name}@{version}")
            store.read_blob(manifest.payload.file.blob, verify="always")
            found.append(f"{name}@{version}")
        for alias in store.aliases(name):
            store.resolve(f"{name}:{alias}")
    return found


def check(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"failed: {what}")


def init(folder: Path, number: int) -> bool:
    root = folder / "parts"
    died = dies_at(number, lambda: Store.init(root))
    made = True
    try:
        Store.open(root)
    except LayoutError:
        made = False
    check(made or died, "init returned without a registry")
    with suppress(OSError):
        check(Store.init(root, exist_ok=True).names() == [], "a new registry is empty")
    check(publish(root, FIRST) == "a/b@1.0.0", "publish after a retried init")
    return died


def first_publish(folder: Path, number: int) -> bool:
    store = Store.init(folder / "parts")
    died = dies_at(number, lambda: publish(store.root, FIRST))
    check(whole(store) in ([], ["a/b@1.0.0"]), "a part of a publish can be seen")
    check(publish(store.root, FIRST) == "a/b@1.0.0", "retry")
    check(whole(store) == ["a/b@1.0.0"], "after the retry")
    return died


def second_publish(folder: Path, number: int) -> bool:
    store = Store.init(folder / "parts")
    publish(store.root, FIRST)
    died = dies_at(number, lambda: publish(store.root, SECOND))
    check(whole(store) in (["a/b@1.0.0"], ["a/b@1.0.0", "a/b@2.0.0"]), "a part of a publish can be seen")
    check(publish(store.root, SECOND) == "a/b@2.0.0", "retry")
    return died


def move(folder: Path, number: int) -> bool:
    store = Store.init(folder / "parts")
    publish(store.root, FIRST)
    publish(store.root, SECOND)
    store.set_alias("a/b", "prod", "1.0.0")
    died = dies_at(number, lambda: Store.open(store.root).set_alias("a/b", "prod", "2.0.0", expected="1.0.0"))
    whole(store)
    check(store.aliases("a/b")["prod"] in ("1.0.0", "2.0.0"), "alias lost")
    store.set_alias("a/b", "prod", "2.0.0")
    check(store.aliases("a/b") == {"prod": "2.0.0"}, "retry")
    return died


def main() -> None:
    """Let each scenario die at its first, second, ... step, until it lives."""
    base = Path(sys.argv[1])
    os.fsync = lambda descriptor: None  # the kernel survives: nothing to wait for
    for scenario in (init, first_publish, second_publish, move):
        number = 0
        while True:
            folder = base / f"{scenario.__name__}-{number}"
            folder.mkdir()
            if not scenario(folder, number):
                break
            number += 1
        print(scenario.__name__, number)


main()
