"""Many processes do the same thing at once, or different things to one registry; prints what each got, as JSON.

Run by test_concurrency with a folder, a scenario, a number of processes, a number of rounds, and what is different:
``links`` (no hard links), ``locks`` (locking files does nothing), ``pids`` (nobody can tell whose drafts are in use),
``umask=077``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from bound_parts import publish_extractor, publish_head
from registry_parts import CONDITIONS, collected, manifest_for, put
from scenarios import EXTRACTOR, HEAD, no_waiting

from compatkit.errors import CompatkitError, IntegrityError, NotFound, PolicyBroken, UsageError
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry.dropping import drop
from compatkit.registry.index.lookup import Index
from compatkit.registry.maintenance import ages
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.remotes.pushpull import import_components
from compatkit.registry.second_names import copy
from compatkit.registry.store import Store

SOURCE = "source"


def make(root: Path, number: int, rounds: int) -> Any:
    """Make a registry where none is."""
    return Store.init(root / "new", exist_ok=True).id


def same(root: Path, number: int, rounds: int) -> Any:
    """Publish what all others publish."""
    store = Store.open(root)
    return str(store.publish("a/b", manifest_for(put(store, 7)), version="1.0.0"))


def different(root: Path, number: int, rounds: int) -> Any:
    """Publish something of one's own under the number that all others want."""
    store = Store.open(root)
    return str(store.publish("a/b", manifest_for(put(store, number)), version="1.0.0"))


def numbers(root: Path, number: int, rounds: int) -> Any:
    """Publish several times, whatever the number."""
    store = Store.open(root)
    return [
        str(store.publish("a/b", manifest_for(put(store, 100 * number + index)))) for index in range(rounds)
    ]


def count(root: Path, number: int, rounds: int) -> Any:
    """Count up, by compare-and-swap on an alias."""
    store, moved = Store.open(root), 0
    while moved < rounds:
        current = store.aliases("a/b")["count"]
        try:
            store.set_alias("a/b", "count", f"{int(current.split('.')[0]) + 1}.0.0", expected=current)
        except CompatkitError as error:
            if error.code != "alias-moved":
                raise
            continue
        moved += 1
    return moved


def bring(root: Path, number: int, rounds: int) -> Any:
    """Import what all others import."""
    source = Store.open(root.with_name(SOURCE))
    return len(import_components(source, Store.open(root)).created)


def renumber(root: Path, number: int, rounds: int) -> Any:
    """Drop and copy the names of one component at random."""
    store, chance, done = Store.open(root), random.Random(number), 0
    for _ in range(rounds):
        reference = chance.choice(["a/b@1.0.0", "a/b@2.0.0", "c@1.0.0"])
        try:
            if chance.random() < 0.7:
                drop(store, reference, "by chance")
            else:
                copy(
                    store,
                    chance.choice([f"{name}@{version}" for name, version in store.references.each()]),
                    reference,
                )
        except UsageError:  # the only name, or gone; or below another number
            continue
        except IndexError:  # a listing is no snapshot: the last name moved to where it had looked already
            continue
        done += 1
    return done


def odd(left: int, right: int) -> bool:
    """Return whether an extractor and a head that are numbers do not work together: for a third of all."""
    return (left + right) % 3 == 0


def promised(root: Path, number: int, rounds: int) -> Any:
    """Publish extractors, or heads, that must work with all that the others publish."""
    act = publish_extractor if number % 2 else publish_head
    through: list[str] = []
    for index in range(rounds):
        try:
            through.append(str(act(root, 100 * number + index, odd)))
        except PolicyBroken:
            continue
    return through


# --- different things at once; who works for a number of rounds ends the others' work


def working(root: Path) -> bool:
    """Return whether those who work are still at it."""
    return len(list(root.parent.glob("finished-*"))) < 2


def begun(root: Path, number: int) -> None:
    """Say that one of those who go on until the work ends has done its own once."""
    (root.parent / f"begun-{number}").touch()


def all_began(root: Path) -> bool:
    """Return whether all of those have, or one has failed."""
    began = len(list(root.parent.glob("begun-*")))
    return began == len(ROLES) - 2 or any(root.parent.glob("finished-*-failed"))


def publisher(root: Path, number: int, rounds: int) -> Any:
    """Publish new weights again and again; where they were collected before they were published, put them again."""
    store, message = Store.open(root), 0
    for index in range(rounds):
        while index == rounds - 1 and not all_began(root):  # on a slow machine they begin late
            time.sleep(0.01)
        while True:
            try:
                store.publish(f"made/{number}", manifest_for(put(store, 1000 * number + index)))
            except IntegrityError as error:
                if not any(what in str(error) for what in ("not in this registry", "is missing")):
                    raise
                message += 1
                continue
            break
        store.evidence.record(EXTRACTOR, HEAD, CONDITIONS, dumps({"round": index, "by": number}))
    (root.parent / f"finished-{number}").touch()
    return {"published": rounds, "told": message}


def importer(root: Path, number: int, rounds: int) -> Any:
    """Import one version after the other."""
    source, store = Store.open(root.with_name(SOURCE)), Store.open(root)
    versions = source.versions("other/part")
    for index in range(rounds):
        import_components(source, store, [f"other/part@{versions[index % len(versions)]}"])
    (root.parent / f"finished-{number}").touch()
    return {"imported": len(store.versions("other/part"))}


def collector(root: Path, number: int, rounds: int) -> Any:
    """Collect at once, as often as possible."""
    done = 0
    while working(root):
        plan(Store.open(root), grace=timedelta(0), alone=True).apply()
        done += 1
        begun(root, number)
    return {"collected": done}


def reader(root: Path, number: int, rounds: int) -> Any:
    """Read everything that can be named; all of it must be there."""
    read = 0
    while working(root):
        store = Store.open(root)
        for name in store.names():
            try:
                versions = store.versions(name)
            except NotFound:
                continue  # without links a name is taken before the content of its first version is there
            for version in versions:
                manifest = store.manifest(f"{name}@{version}")
                store.read_blob(manifest.payload.file.blob)
                read += 1
        store.evidence.results([EXTRACTOR], [HEAD])
        if read:
            begun(root, number)
    return {"read": read}


def searcher(root: Path, number: int, rounds: int) -> Any:
    """Ask the index, and make it anew."""
    request = 0
    while working(root):
        index = Index.of(root, Store.open(root).id)
        for component in index.search():
            request += bool(component.name)
        if request % 3 == 0:
            index.rebuild()
        index.close()
        begun(root, number)
    return {"asked": request}


ROLES = (publisher, importer, collector, reader, collector, searcher)


def together(root: Path, number: int, rounds: int) -> Any:
    """Do what one's number says."""
    return ROLES[number % len(ROLES)](root, number, rounds)


SCENARIOS: dict[str, Callable[[Path, int, int], Any]] = {
    item.__name__: item
    for item in (make, same, different, numbers, count, bring, renumber, promised, together)
}


def lack(what: list[str]) -> None:
    """Take away what the file system or the system may lack."""
    if "links" in what:
        durable.link = lambda source, target: False
    if "pids" in what:
        ages._is_running = lambda process: False
    if "locks" in what:
        import fcntl

        fcntl.flock = fcntl.lockf = lambda *arguments: None
    for entry in what:
        if entry.startswith("umask="):
            os.umask(int(entry.removeprefix("umask="), 8))


def main() -> None:
    """Start the processes, let them go at once, and collect what they say."""
    root, scenario, processes, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    no_waiting()
    lack(sys.argv[5:])
    gate_read, gate_write = os.pipe()
    results = []
    for number in range(processes):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(gate_write)
            os.read(gate_read, 1)
            try:
                result: Any = SCENARIOS[scenario](root, number, rounds)
            except CompatkitError as error:
                result = {"error": error.code, "message": str(error)}
            except BaseException:
                result = {"error": "defect", "message": traceback.format_exc()}
            if isinstance(result, dict) and "error" in result:
                (root.parent / f"finished-{number}").touch()
                (root.parent / f"finished-{number}-failed").touch()
            with os.fdopen(write, "w") as file, suppress(BrokenPipeError):
                json.dump(result, file)
            os._exit(0)
        os.close(write)
        results.append(read)
    os.close(gate_write)  # the gate opens for all
    result = []
    for read in results:
        with os.fdopen(read) as file:
            result.append(json.load(file))
    print(json.dumps(result))
    if scenario != "make":
        collected(root)  # nothing dangles, and nothing that is unused stays


main()
