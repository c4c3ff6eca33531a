"""Kill a process at random moments while it does everything that can be done to a registry; after each, examine it.

Run by test_durability with a folder, a number of kills and a seed. Prints how many of each thing were done in full.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from registry_parts import CONDITIONS, check, collected, manifest_for, put, whole
from scenarios import EXTRACTOR, HEAD, KEY, family, no_waiting, opened

from compatkit.contracts.manifest import Parent
from compatkit.errors import IntegrityError, NotFound, UsageError, VersionUntrue
from compatkit.foundation.codec import dumps
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.dropping import drop
from compatkit.registry.index.lookup import Index
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.remotes.pushpull import import_components, pull, push
from compatkit.registry.restoring import restore
from compatkit.registry.second_names import copy
from compatkit.registry.settings import change_settings
from compatkit.registry.store import Store

LIFE = 0.15
"""Seconds that a process lives at most."""
FRESH = 12
"""Kills after which a new registry is taken, so that looking through it stays quick."""
NAMES = ("a/one", "a/two", "b")


def one_thing(root: Path, chance: random.Random) -> str:
    """Do one thing at random; return its name."""
    store, name = opened(root), chance.choice(NAMES)
    done = chance.choice(
        [
            "publish",
            "publish",
            "child",
            "alias",
            "alias",
            "withdraw",
            "copy",
            "copy",
            "drop",
            "drop",
            "import",
            "collect",
            "record",
            "blob",
            "index",
            "settings",
            "restore",
            "restore",
            "push",
            "pull",
        ]
    )
    versions = store.references.versions(name)
    if done == "publish" or not versions:
        size = chance.choice([1, 1, 100_000])
        store.publish(name, manifest_for(put(store, chance.randrange(10), size)))
        return "publish"
    if done == "child":
        parent = Parent("initialised_from", str(store.references.digest(name, chance.choice(versions))))
        store.publish("child", manifest_for(put(store, chance.randrange(10)), parents=(parent,)))
    elif done == "alias":
        with suppress(NotFound):  # withdrawn
            store.set_alias(name, "prod", chance.choice([None, *versions]))
    elif done == "withdraw":
        store.withdraw(name, chance.choice(versions), "by chance")
    elif done == "settings":
        aliases = chance.sample(["prod", "release-*", "old"], 2)
        roles = {"owners": [KEY.public.id], "maintainers": [KEY.public.id]}
        change_settings(root, store.author, **roles, protected_aliases=aliases)
    elif done == "restore":
        with suppress(NotFound, IntegrityError, VersionUntrue):  # not withdrawn, collected, too small a step
            restore(store, name, chance.choice(versions), "by chance")
    elif done == "push":
        push(store, str(root.with_name("remote")))
    elif done == "pull":
        if root.with_name("remote").exists():
            pull(store, str(root.with_name("remote")), settings=TransferSettings().following())
    elif done == "copy":
        with suppress(NotFound):  # withdrawn
            copy(store, f"{name}@{chance.choice(versions)}", chance.choice([name, *NAMES]))
    elif done == "drop":
        with suppress(UsageError):  # the only name, an alias, withdrawn
            drop(store, f"{name}@{chance.choice(versions)}", "by chance")
    elif done == "import":
        source = Store.open(root.with_name("source"))
        import_components(source, store, chance.choice([["*"], ["a/head"]]))
    elif done == "collect":
        plan(store, grace=timedelta(0), alone=True, withdrawn=chance.random() < 0.3).apply()
    elif done == "record":
        store.evidence.record(EXTRACTOR, HEAD, CONDITIONS, dumps({"accuracy": chance.random()}))
    elif done == "blob":
        put(store, chance.randrange(10**6))
    else:
        index = Index.of(store.root, store.id)
        chance.choice([index.rebuild, index.listing])()
    return done


def live(root: Path, seed: int, tell: int) -> None:
    """Do one thing after the other until killed."""
    chance = random.Random(seed)
    try:
        while True:
            os.write(tell, f"{one_thing(root, chance)}\n".encode())
    except BaseException:
        os.write(tell, f"FAILED {traceback.format_exc()}".encode())
        os._exit(1)


def kill_one(root: Path, seed: int) -> Counter[str]:
    """Let a process live for a moment, every second one after its first thing; kill it, and return what it did."""
    listen, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(listen)
        live(root, seed, tell)
    os.close(tell)
    first = os.read(listen, 1) if seed % 2 else b""
    time.sleep(random.Random(seed).uniform(0.01, LIFE))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(listen) as result:
        message = first.decode() + result.read()
    check("FAILED" not in message, message)
    return Counter(message.split())


def main() -> None:
    """Kill as often as asked."""
    base, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    done: Counter[str] = Counter()
    no_waiting()
    for number in range(kills):
        root = base / "parts"
        if number % FRESH == 0:
            for folder in (root, base / "source", base / "remote"):
                shutil.rmtree(folder, ignore_errors=True)
            family(root)
        done += kill_one(root, seed + number)
        store = Store.open(root)
        index = Index.of(store.root, store.id)
        remote = [name for name in store.names() if store.versions(name)]
        check(
            [line.name for line in index.listing()] == remote,
            f"after kill {number}: the index does not say what the files say",
        )
        index.close()
        lost = [fault for fault in examine(store, deep=False).faults if fault.code == "dropped-unnamed"]
        check(not lost, f"after kill {number}: {lost}")
        for name in store.names():
            for alias in store.aliases(name):
                moves = store.alias_log(name, alias)
                check(
                    [move.number for move in moves] == list(range(1, len(moves) + 1)),
                    f"a move of {alias} is lost",
                )
        refused = [change.error for change in store.rules.history if change.error]
        check(not refused, f"after kill {number}: settings that do not count: {refused}")
        if (base / "remote/compatkit.json").exists():
            whole(Store.open(base / "remote"))
        if number % 2:
            collected(root)
    print(json.dumps(done))


main()
