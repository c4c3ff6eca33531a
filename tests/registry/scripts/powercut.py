"""Cut the power of a disk at random moments while a process works; what it was told is done must be there afterwards.

Run by test_durability as root with a folder, a number of cuts, a seed and, to see that the script would notice,
``unsynced``: then no file is synced. The disk is an ext4 file system on a loop device. The cut is the ioctl by which
file systems are tested: nothing that is still in memory reaches the disk, not even the journal. Unlike after a kill,
only what was synced survives. Prints how many of each thing were done in full.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from registry_parts import check, collected, manifest_for, put, whole
from scenarios import KEY, opened

from compatkit.errors import IntegrityError, NotFound, UsageError, VersionUntrue
from compatkit.registry.drop_records import drop_log
from compatkit.registry.dropping import drop
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.names import Version
from compatkit.registry.restoring import restore
from compatkit.registry.second_names import copy
from compatkit.registry.settings import change_settings
from compatkit.registry.store import Store
from compatkit.registry.withdrawals import parse_entry_name

LIFE = 1.0
"""Seconds of work at most."""
FRESH = 10
"""Cuts after which a new file system is made."""
SHUT_DOWN, WITHOUT_JOURNAL = 0x8004587D, struct.pack("I", 2)
NAMES = ("a/one", "b")
DEEDS = (
    "publish",
    "publish",
    "alias",
    "withdraw",
    "collect",
    "copy",
    "copy",
    "drop",
    "drop",
    "restore",
    "settings",
)


def one_thing(store: Store, chance: random.Random) -> list[str]:
    """Do one thing at random; return what must be true from now on."""
    name, done = chance.choice(NAMES), chance.choice(DEEDS)
    versions = store.references.versions(name)
    if done == "settings":
        aliases = chance.sample(["prod", "release-*", "old"], 2)
        roles = {"owners": [KEY.public.id], "maintainers": [KEY.public.id]}
        change = change_settings(store.root, store.author, **roles, protected_aliases=aliases)
        return ["settings", str(change.number)]
    if done == "restore" and (withdrawn := [*store.references.withdrawn(name)]):
        version = chance.choice(sorted(withdrawn))
        try:
            restore(store, name, version, "by chance")
        except (IntegrityError, VersionUntrue):
            return ["refused"]  # collected, or too small a step by now
        return ["restore", name, str(version), str(len(store.references.withdrawals(name).log(version)))]
    living = [entry for entry in versions if store.tombstone(name, entry) is None]
    if done == "publish" or not living:
        size = chance.choice([1, 1, 100_000])
        return ["publish", str(store.publish(name, manifest_for(put(store, chance.randrange(10**6), size))))]
    version = chance.choice(living)
    if done == "alias":
        store.set_alias(name, "prod", version)
        return ["alias", name, str(len(store.alias_log(name, "prod"))), str(version)]
    if done == "withdraw":
        store.withdraw(name, version, "by chance")
        return ["withdraw", name, str(version), str(len(store.references.withdrawals(name).log(version)))]
    if done == "copy":
        return ["copy", str(copy(store, f"{name}@{version}", chance.choice(NAMES)))]
    if done == "drop":
        try:
            return ["drop", f"{name}@{version}", drop(store, f"{name}@{version}", "by chance").digest]
        except UsageError:
            return ["refused"]  # the only name, or an alias points at it
    plan(store, grace=timedelta(0), alone=True, withdrawn=chance.random() < 0.3).apply()
    return ["collect"]


def live(root: Path, seed: int, tell: int) -> None:
    """Do one thing after the other until the power is cut."""
    chance, store = random.Random(seed), opened(root)
    try:
        while True:
            os.write(tell, f"{json.dumps(one_thing(store, chance))}\n".encode())
    finally:
        os._exit(1)


def check_durable(root: Path, lines: list[str]) -> None:
    """Check that something that was done is still so."""
    store, (what, *rest) = Store.open(root), lines
    if what in ("publish", "copy"):
        name, _, number = rest[0].partition("@")
        version = Version.parse(number)
        check(
            version in store.references.versions(name)
            or bool(drop_log(store.references, name, version).numbers()),
            f"{rest[0]} was published, and is lost",
        )
    elif what == "drop":
        name, _, number = rest[0].partition("@")
        check(
            Version.parse(number) not in store.references.versions(name),
            f"{rest[0]} was dropped, and is back",
        )
        check(rest[1] in {digest for _, digest in store.index.roots()}, f"{rest[0]} was dropped, and is lost")
    elif what == "alias":
        name, number, version = rest
        moves = store.alias_log(name, "prod")
        check(len(moves) >= int(number) and moves[int(number) - 1].after == version, f"move {lines} is lost")
    elif what == "settings":
        history = {change.number: change.error for change in store.rules.history}
        check(history.get(int(rest[0]), "missing") is None, f"{lines} is lost: {history}")
    elif what in ("withdraw", "restore"):
        name, number, entries = rest
        log = store.references.withdrawals(name).log(Version.parse(number))
        check(len(log) >= int(entries), f"{lines} is lost")
        if log[-1].restores:
            return
        try:
            store.resolve(f"{name}@{number}")
        except NotFound:
            return
        check(False, f"{lines}: it can be found again")


def finish(store: Store, where: str) -> None:
    """Check that nothing is wrong but a withdrawal that was cut off between its two files, and finish that one."""
    for fault in examine(store).faults:
        check(fault.severity != "error" or fault.code == "tombstone-missing", f"{where}: {fault}")
        if fault.code == "tombstone-missing":
            name, _, entry = fault.path.removeprefix("refs/").partition("/@tombstones/")
            version, number = parse_entry_name(entry) or (Version(0, 0, 0), 0)
            if number % 2:
                opened(store.root).withdraw(name, version, "by chance")
            else:
                restore(opened(store.root), name, version, "by chance")
    check(examine(store).sound, f"{where}, after the retry")


def cut(disk: Path, image: Path, seed: int) -> list[list[str]]:
    """Let a process work for a moment, cut the power, and mount the disk again; return what was done."""
    listen, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(listen)
        live(disk / "parts", seed, tell)
    os.close(tell)
    time.sleep(random.Random(seed).uniform(0.02, LIFE))
    folder = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(folder, SHUT_DOWN, WITHOUT_JOURNAL)
    os.close(folder)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(listen) as result:
        done = [json.loads(line) for line in result if line.endswith("\n")]
    subprocess.run(["umount", disk], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    return done


def main() -> None:
    """Cut as often as asked."""
    base, cuts, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == ["unsynced"]:
        os.fsync = lambda descriptor: None
    disk, image = base / "disk", base / "image"
    disk.mkdir()
    counted: Counter[str] = Counter()
    try:
        for number in range(cuts):
            if number % FRESH == 0:
                if os.path.ismount(disk):
                    subprocess.run(["umount", disk], check=True)
                image.unlink(missing_ok=True)
                with image.open("wb") as file:
                    file.truncate(48 * 2**20)
                subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
                subprocess.run(["mount", "-o", "loop", image, disk], check=True)
                Store.init(disk / "parts")
                promised: list[list[str]] = []
            done = cut(disk, image, seed + number)
            promised += done
            for entry in promised:
                check_durable(disk / "parts", entry)
            whole(Store.open(disk / "parts"))
            finish(Store.open(disk / "parts"), f"after cut {number}")
            if number % 2:
                collected(disk / "parts")
            counted.update(result[0] for result in done)
    finally:
        subprocess.run(["umount", disk], check=False)
    print(json.dumps(counted))


main()
