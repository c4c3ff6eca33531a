"""Two processes' work in every order of their steps: a publisher, importer, recorder or reader beside a collection.

For all i and j: the one does i steps, the other j, then the one all that is left, then the other; and the same with the
collection first. After each, everything that can be named is read. Run by test_concurrency with a folder, encounters
and their strides of i and j (``publish:1,1``), and what is lacking: ``links`` (no hard links), ``pids`` (nobody can
tell whose drafts are in use). Prints one line an encounter: its name, the number of orders, how often the one had to be
told that bytes are gone.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import attrs
from actors import Actor
from registry_parts import CONDITIONS, blobs_in, check, collected, manifest_for, put, whole
from scenarios import EXTRACTOR, HEAD, family, no_waiting, publish, with_one_version

from compatkit.contracts.manifest import Parent
from compatkit.errors import IntegrityError
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance import ages
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.remotes.pushpull import import_components
from compatkit.registry.store import Store

VALUE = 7
ALONE = TransferSettings(jobs=1, aliases=False)
"""Every step is one of the thread that waits for its turn."""


@attrs.frozen
class Encounter:
    """Who meets a collection.

    Attributes:
        prepare: Makes the registry.
        act: What is done beside the collection.
        again: What is done if bytes were gone.
        may_miss: Whether the one may be told so: it relies on bytes that nothing refers to.
    """

    name: str
    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    again: Callable[[Path], object]
    may_miss: bool = False


def with_weights(root: Path) -> None:
    """Make a registry in which weights lie that nothing refers to."""
    with_one_version(root)
    put(Store.open(root), VALUE)


def with_withdrawn_parent(root: Path) -> None:
    """Make a registry with a withdrawn version."""
    with_one_version(root)
    publish(root, VALUE, "parent")
    Store.open(root).withdraw("parent", "1.0.0", "wrong")


def in_trash(root: Path) -> None:
    """Make a registry whose one manifest was taken out, by a collection that was cut off."""
    with_weights(root)
    store = Store.open(root)
    path = store.objects.path(str(store.resolve("a/b").digest))
    path.rename(root / "trash" / f"{path.name}-1-{'a' * 16}")


def weights(root: Path) -> object:
    """Return the manifest of the weights that lie there, without putting them."""
    seen = Store.init(root.with_name("elsewhere"), exist_ok=True)
    return manifest_for(put(seen, VALUE))


def publish_prepared(root: Path) -> None:
    """Publish weights that were put before."""
    Store.open(root).publish("new", weights(root))  # type: ignore[arg-type]


def publish_child(root: Path) -> None:
    """Publish a component whose parent was withdrawn."""
    store = Store.open(root)
    digest = str(store.references.digest("parent", store.references.versions("parent")[0]))
    store.publish("new", manifest_for(put(store, 99), parents=(Parent("initialised_from", digest),)))


def record(root: Path) -> None:
    """Record a result."""
    Store.open(root).evidence.record(EXTRACTOR, HEAD, CONDITIONS, dumps({"accuracy": 1}))


def with_result(root: Path) -> None:
    """Make a registry in which the bytes of a result lie that nothing refers to."""
    with_one_version(root)
    Store.open(root).put_blob(dumps({"accuracy": 1}))


def bring(root: Path) -> None:
    """Import from the registry beside this one."""
    import_components(Store.open(root.with_name("source")), Store.open(root), ["a/head"], settings=ALONE)


def half_imported(root: Path) -> None:
    """Make a registry that holds all the bytes of another one, without a name."""
    family(root)
    source, store = Store.open(root.with_name("source")), Store.open(root)
    for digest in blobs_in(source):
        store.put_blob(source.read_blob(digest))


def read(root: Path) -> None:
    """Read what can be named."""
    store = Store.open(root)
    manifest = store.manifest("a/b")
    store.read_blob(manifest.payload.file.blob)


def collect_twice(root: Path, withdrawn: bool) -> None:
    """Collect at once, twice: what the first takes out, the second may delete."""
    for _ in range(2):
        with suppress(IntegrityError):  # a version whose bytes come back at this moment
            plan(Store.open(root), grace=timedelta(0), alone=True, withdrawn=withdrawn).apply()


ENCOUNTERS = (
    Encounter(
        "publish",
        with_weights,
        lambda root: publish(root, VALUE, "new"),
        lambda root: publish(root, VALUE, "new"),
        True,
    ),
    Encounter(
        "publish_prepared", with_weights, publish_prepared, lambda root: publish(root, VALUE, "new"), True
    ),
    Encounter("publish_child", with_withdrawn_parent, publish_child, publish_child, True),
    Encounter("record", with_result, record, record),
    Encounter("import", half_imported, bring, bring),
    Encounter("read", in_trash, read, read),
)


def meet(
    encounter: Encounter, base: Path, folder: Path, i: int, j: int, collecting_first: bool
) -> tuple[bool, bool, bool]:
    """Let them meet in one order; return whether either had ended after its steps, and whether bytes were missed."""
    shutil.copytree(base, folder)
    root = folder / "parts"
    actors: dict[int, Actor] = {}

    def step(operation: str, path: Path) -> None:
        actor = actors.get(threading.get_ident())
        if actor is not None:
            actor.reached()

    first = Actor(lambda: encounter.act(root))
    second = Actor(lambda: collect_twice(root, encounter.name == "publish_child"))
    for actor in (first, second):
        actors[actor.thread.ident or 0] = actor
    durable.step = step
    turns = [(first, i), (second, j)]
    for actor, count in reversed(turns) if collecting_first else turns:
        for _ in range(count):
            actor.step()
    ended = first.finished, second.finished
    for actor, _ in reversed(turns) if collecting_first else turns:
        actor.finish()
    durable.step = lambda operation, path: None
    where = f"{encounter.name}, {i} steps, {j} of the collection, which is {'first' if collecting_first else 'second'}"
    check(second.error is None, f"{where}: {second.told}")
    missed = first.error is not None
    if missed:
        check(encounter.may_miss and isinstance(first.error, IntegrityError), f"{where}: {first.told}")
    examine(encounter, root, missed, where)
    shutil.rmtree(folder)
    return *ended, missed


def examine(encounter: Encounter, root: Path, missed: bool, where: str) -> None:
    """See that nothing dangles, and that what was refused can be done again."""
    try:
        result = whole(Store.open(root))
        if missed:
            check("new@1.0.0" not in result, "a version that was refused is there")
            encounter.again(root)
        collected(root)
    except (SystemExit, IntegrityError) as error:
        raise SystemExit(f"{where}: {error}") from error


def go_through(encounter: Encounter, folder: Path, strides: tuple[int, int]) -> None:
    """Let an encounter happen in all orders, or in some."""
    base, now = folder / encounter.name, folder / f"{encounter.name}-now"
    base.mkdir()
    encounter.prepare(base / "parts")
    orders, misses, i, one_ended = 0, 0, 0, False
    while not one_ended:
        j, other_ended = i % strides[1], False
        while not other_ended:
            for collecting_first in (False, True):
                one_ended, other_ended, missed = meet(encounter, base, now, i, j, collecting_first)
                orders, misses = orders + 1, misses + missed
            j += strides[1]
        i += strides[0]
    print(encounter.name, orders, misses, flush=True)


def main() -> None:
    """Take away what is lacking, and go through the encounters that are named."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    no_waiting()
    if "links" in words:
        durable.link = lambda source, target: False
    if "pids" in words:
        ages._is_running = lambda process: False
    known = {encounter.name: encounter for encounter in ENCOUNTERS}
    for word in words:
        name, colon, strides = word.partition(":")
        if colon:
            i, j = map(int, strides.split(","))
            go_through(known[name], folder, (i, j))


main()
