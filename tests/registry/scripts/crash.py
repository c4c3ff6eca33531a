"""Interrupt a process at every step of everything that changes a registry; after each the registry is whole.

Run by test_durability with a folder and words ``SCENARIO:WAY:EVERY``. The way to fail is ``death`` (the process ends at
the step, without any cleaning up), ``each`` (the step raises an error of the system, another one each time), an error's
name (``ENOSPC``: that one, at this step), or a name with ``+`` (at this step and all that follow). Every is 1 for every
step, 3 for every third. Prints one line a word: the scenario and the number of its steps.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from registry_parts import aliases, check, collected, snapshot, sweep, whole
from scenarios import SCENARIOS, Scenario, no_waiting

from compatkit.errors import EnvironmentFailure, LayoutError
from compatkit.registry import disk as durable
from compatkit.registry.signing.verify import require_signature
from compatkit.registry.store import Store

States = tuple[dict[str, int], dict[str, int], dict[str, dict[str, str]]]
"""Of a registry that was never interrupted: paths and sizes before and after, and its aliases after."""
DIED, REFUSED, BROKEN = 9, 4, 1
ERRORS = ("ENOSPC", "EDQUOT", "EMFILE", "EIO", "EROFS", "EACCES", "ENFILE")


def interrupting(number: int, way: str) -> Callable[[str, Path], None]:
    """Return a hook that interrupts the step with this number, counted from 0."""
    name = ERRORS[number % len(ERRORS)] if way == "each" else way.removesuffix("+")
    left = number

    def step(operation: str, path: Path) -> None:
        nonlocal left
        left -= 1
        if left >= 0 or (left < -1 and not way.endswith("+")):
            return
        if way == "death":
            os._exit(DIED)
        code = getattr(errno, name)
        if operation != "unlink" or name in ("EROFS", "EACCES"):  # a full disk still lets files go
            raise OSError(code, os.strerror(code), str(path))
        left += not way.endswith("+")  # this step cannot fail so: the next one does

    return step


def interrupted(number: int, way: str, act: Callable[[Path], object], root: Path) -> int:
    """Do it in a child that is interrupted; return how that ended, 0 if it never reached that step."""
    child = os.fork()
    if child == 0:
        reached = False
        hook = interrupting(number, way)

        def step(operation: str, path: Path) -> None:
            nonlocal reached
            try:
                hook(operation, path)
            except OSError:
                reached = True
                raise

        durable.step = step
        try:
            act(root)
        except EnvironmentFailure as error:
            text = str(error)
            message = root.name in text and any(name in text for name in (*ERRORS, "No partial files"))
            os._exit(REFUSED if message else BROKEN)
        except BaseException:
            traceback.print_exc()
            os._exit(BROKEN)
        os._exit(REFUSED if reached else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def clean(scenario: Scenario, base: Path, folder: Path) -> States:
    """Return what a registry consists of before and after, where nothing was interrupted and nothing unused is left."""
    before, after = copied(base, folder / "before"), copied(base, folder / "after")
    if before.exists() and scenario.sound:
        collected(before)
    scenario.act(after)
    collected(after)
    return snapshot(before), snapshot(after), aliases(after)


def copied(base: Path, folder: Path) -> Path:
    """Copy what was prepared; return the root of the registry."""
    if base.exists():
        shutil.copytree(base, folder)
    else:
        folder.mkdir()
    return folder / "parts"


def examine(scenario: Scenario, root: Path, states: States, where: str) -> None:
    """Read everything, collect what is unused, compare with a registry that was never interrupted, and try again."""
    before, after, expected = states
    try:
        store = Store.open(root)
    except LayoutError:
        check(scenario.prepare is None, f"{where}: the registry is none any more")
    else:
        if scenario.sound:
            whole(store)
        if scenario.sound and scenario.atomic:
            sweep(root)
            now = lasting(snapshot(root))
            check(now in map(lasting, (before, after)), f"{where}: {difference(now, before, after)}")
        elif scenario.sound:
            collected(root)
    scenario.act(root)
    check(tuple(whole(sweep(root))) == scenario.finished, f"{where}: after the retry")
    check(snapshot(root) == after, f"{where}: after the retry: {difference(snapshot(root), after, after)}")
    check(aliases(root) == expected, f"{where}: aliases after the retry: {aliases(root)}")
    signed(Store.open(root))


def signed(store: Store) -> None:
    """See that every version in use has the signature that the settings require."""
    for name in store.names() if (keys := store.signers) is not None else ():
        for version in store.versions(name):
            require_signature(store, store.resolve(f"{name}@{version}"), keys, "auto")


def lasting(files: dict[str, int]) -> dict[str, int]:
    """Leave out who published, which may be there before its version, and counts with that only."""
    return {path: size for path, size in files.items() if "/@published/" not in path}


def difference(now: dict[str, int], before: dict[str, int], after: dict[str, int]) -> str:
    """Say what is left over or missing, compared with either state."""
    return f"beside before {sorted(now.items() ^ before.items())}, beside after {sorted(now.items() ^ after.items())}"


def run(scenario: Scenario, folder: Path, way: str, every: int) -> int:
    """Interrupt a scenario at its steps, one after the other, until it ends undisturbed; return how many there are."""
    base = folder / "base"
    if scenario.prepare is not None:
        base.mkdir(parents=True)
        scenario.prepare(base / "parts")
    else:
        folder.mkdir()
    states = clean(scenario, base, folder)
    number = 0
    while True:
        where = f"{scenario.name} at step {number} ({way})"
        root = copied(base, folder / str(number))
        ended = interrupted(number, way, scenario.act, root)
        check(ended in (0, DIED, REFUSED), f"{where} ended with {ended}")
        examine(scenario, root, states, where)
        if ended == 0:
            return number
        number += every


def main() -> None:
    """Run the scenarios that are named."""
    folder, known = Path(sys.argv[1]), {scenario.name: scenario for scenario in SCENARIOS}
    no_waiting()
    for number, word in enumerate(sys.argv[2:]):
        name, way, every = word.split(":")
        print(name, run(known[name], folder / str(number), way, int(every)), flush=True)


main()
