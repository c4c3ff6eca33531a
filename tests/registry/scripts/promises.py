"""Two writers under a policy, in every order of their steps: whatever is released was measured with what it must be.

For all i and j: the one does i steps, the other j, then the one all that is left, then the other; and the same with the
other first. A part is a number; which extractors and heads work together is a table, and deciding a question is looking
into it. After each meeting every pair that the policy speaks of works, or the later of the two was published when
nothing was asked of it. Run by test_concurrency with encounters and their strides (``skew:1,1``) and ``links`` (no hard
links). Prints one line an encounter: its name, the number of orders, how often both, one or none of the two came
through.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
from actors import Actor
from bound_parts import E, H, bind, publish_extractor, publish_head, release, value_of
from registry_parts import check, collected, manifest_for, put
from scenarios import no_waiting

from compatkit.errors import FormatError, IntegrityError, PolicyBroken, PolicyUndecided, VersionTooSmall
from compatkit.registry import disk as durable
from compatkit.registry.store import Store

LATE = "late"
"""Name of a head that no policy binds when it is first published."""

OLD, NEW, OTHER, HEAD, NEXT = 0, 1, 2, 10, 11


def clash(left: int, right: int) -> bool:
    """Return whether an extractor and a head do not work together."""
    return (left, right) == (NEW, NEXT)


def extractor(root: Path, value: int) -> object:
    """Publish an extractor, as the policy allows."""
    return publish_extractor(root, value, clash)


def head(root: Path, value: int, name: str = H) -> object:
    """Publish a head, as the policy allows."""
    return publish_head(root, value, clash, name)


def released(mode: str | None) -> Callable[[Path], None]:
    """Return what makes a registry with one pair under a policy."""

    def prepare(root: Path) -> None:
        release(root, OLD, HEAD, mode)

    return prepare


@attrs.frozen
class Encounter:
    """Two writers.

    Attributes:
        together: Whether both may come through, in an order in which each was allowed.
    """

    name: str
    prepare: Callable[[Path], object]
    one: Callable[[Path], object]
    other: Callable[[Path], object]
    together: bool


ENCOUNTERS = (
    Encounter(
        "candidates",
        released("backward_transitive"),
        lambda root: extractor(root, NEW),
        lambda root: extractor(root, OTHER),
        True,
    ),
    # each breaks with the other, and neither is there when the other first looks
    Encounter(
        "skew",
        released("full_transitive"),
        lambda root: extractor(root, NEW),
        lambda root: head(root, NEXT),
        False,
    ),
    # a first head of a name is bound by nothing; what is measured meanwhile must not overlook it
    Encounter(
        "late",
        released("backward"),
        lambda root: extractor(root, NEW),
        lambda root: head(root, NEXT, LATE),
        True,
    ),
    Encounter(
        "bound",
        released(None),
        lambda root: Store.open(root).publish(E, manifest_for(put(Store.open(root), NEW)), measured=True),
        lambda root: bind(root, "backward"),
        True,
    ),
)


def meet(
    encounter: Encounter, base: Path, folder: Path, i: int, j: int, swapped: bool, cut: bool
) -> tuple[bool, bool, int]:
    """Let them meet in one order; return whether either had ended after its steps, and how many came through."""
    shutil.copytree(base, folder)
    root = folder / "parts"
    actors: dict[int, Actor] = {}
    links: list[str] = []

    def step(operation: str, path: Path) -> None:
        actor = actors.get(threading.get_ident())
        if actor is not None:
            actor.reached()
        # without hard links, a finished draft is renamed over an empty file, which is no version yet
        if operation in ("link", "rename") and root / "tmp" not in path.parents:
            links.append(path.relative_to(root).as_posix())

    pair = [Actor(lambda: encounter.one(root)), Actor(lambda: encounter.other(root))]
    for actor in pair:
        actors[actor.thread.ident or 0] = actor
    durable.step = step
    turns = list(zip(pair, (i, j), strict=True))
    for actor, count in reversed(turns) if swapped else turns:
        for _ in range(count):
            actor.step()
    ended = pair[0].finished, pair[1].finished
    for actor, _ in reversed(turns) if swapped else turns:
        actor.finish()
    durable.step = lambda operation, path: None
    where = f"{encounter.name}, {i} steps and {j}{', the other first' if swapped else ''}"
    refused = [side for side in pair if side.error is not None]
    for refusal in refused:
        # without hard links, a writer that stands still in the middle of a file looks like one that was cut off
        halves = (IntegrityError, FormatError) if cut and "cut off" in str(refusal.error) else ()
        why = (PolicyBroken, PolicyUndecided, VersionTooSmall, *halves)
        check(isinstance(refusal.error, why), f"{where}: {refusal.told}")
    check(encounter.together or refused != [], f"{where}: both came through")
    examine(root, links, where)
    shutil.rmtree(folder)
    return *ended, len(pair) - len(refused)


def examine(root: Path, links: list[str], where: str) -> None:
    """See that every released pair works, unless the head came when the extractor was there and nothing asked."""
    store = Store.open(root)
    result = store.policies.of(E)
    full = result is not None and result.policy is not None and result.policy.mode.startswith("full")
    bound = result is not None and "policies/%2a@1" not in links
    for version in store.versions(E)[1:]:
        left = value_of(store, f"{E}@{version}")
        for name in (H, LATE):
            for entry in store.versions(name) if name in store.references.names() else ():
                right = value_of(store, f"{name}@{entry}")
                if clash(left, right) and version.major == 1 and bound:
                    first = links.index(f"refs/{E}/@versions/{version}") < links.index(
                        f"refs/{name}/@versions/{entry}"
                    )
                    check(first and not full, f"{where}: {E}@{version} was not measured with {name}@{entry}")
    for name in (E, H):
        numbers = store.references.versions(name)
        check(
            len({store.references.digest(name, number) for number in numbers}) == len(numbers),
            f"{where}: twice the same",
        )
    collected(root)


def go_through(encounter: Encounter, folder: Path, strides: tuple[int, int], cut: bool) -> None:
    """Let an encounter happen in all orders, or in some.

    Args:
        encounter: Two writers.
        folder: For registries.
        strides: Steps of either that are passed over from one order to the next.
        cut: Whether files can be seen half written, for there are no hard links.
    """
    base, now = folder / encounter.name, folder / f"{encounter.name}-now"
    base.mkdir()
    encounter.prepare(base / "parts")
    through: Counter[int] = Counter()
    i, one_ended = 0, False
    while not one_ended:
        j, other_ended = i % strides[1], False
        while not other_ended:
            for swapped in (False, True):
                one_ended, other_ended, count = meet(encounter, base, now, i, j, swapped, cut)
                through[count] += 1
            j += strides[1]
        i += strides[0]
    print(encounter.name, through.total(), through[2], through[1], through[0], flush=True)


def main() -> None:
    """Take away what is lacking, and go through the encounters that are named."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    no_waiting()
    if "links" in words:
        durable.link = lambda source, target: False
    known = {encounter.name: encounter for encounter in ENCOUNTERS}
    for word in words:
        name, colon, strides = word.partition(":")
        if colon:
            i, j = map(int, strides.split(","))
            go_through(known[name], folder, (i, j), "links" in words)


main()
