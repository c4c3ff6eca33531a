"""After any history a matrix takes what was measured under exactly these conditions, and nothing else.

Beside the registry stands a plain list of everything that was ever measured, with every value it depended on, and the
rule written out slowly. Figures are made of all those values by a hash, so that one that is taken for another shows.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from handmade import child_of, part
from hypothesis import given, settings
from hypothesis import strategies as st

import compatkit as ck
from compatkit.components.loading import PartLoader
from compatkit.contracts import evidence as cells
from compatkit.contracts.contract import Label
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.manifest import function_digest
from compatkit.data.split import Split
from compatkit.evaluation import matrix
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.registry.index import stamps

FIRST = 1_000_000_000
NAMES = ("a.extractor", "b.extractor", "a.head", "b.head")
LABELS = (Label("0"), Label("1"))
SEVEN = np.arange(7) % 2
SPLITS = {
    "whole": Split(np.zeros((7, 2, 2, 1), np.uint8), SEVEN, ("0", "1"), "a/test"),
    "changed": Split(np.ones((7, 2, 2, 1), np.uint8), SEVEN, ("0", "1"), "a/test"),
    "renamed": Split(np.zeros((7, 2, 2, 1), np.uint8), SEVEN, ("0", "1"), "b/test"),
    "fewer": Split(np.zeros((4, 2, 2, 1), np.uint8), SEVEN[:4], ("0", "1"), "a/test"),
    "sample": Split(np.zeros((4, 2, 2, 1), np.uint8), SEVEN[:4], ("0", "1"), "a/test", sample=True),
    "other sample": Split(np.ones((4, 2, 2, 1), np.uint8), SEVEN[:4], ("0", "1"), "a/test", sample=True),
    "reordered": Split(np.zeros((7, 2, 2, 1), np.uint8), SEVEN[::-1].copy(), ("0", "1"), "a/test"),
}


@attrs.frozen(eq=False)
class Steps:
    """What stands between a pair, as far as keys know of it."""

    function: str

    def __str__(self) -> str:
        return f"adapter {self.function[-1]}"


ADAPTERS = [Steps("value:sha256:" + digit * 64) for digit in "12"]


@attrs.frozen
class Wanted:
    """A question to the registry, in full."""

    split: str = "whole"
    policy: str = "batch"
    batch_size: int = 3
    seed: int = 0
    precision: str = "float32"
    adapters: int = 0
    fill: str = "missing"


@attrs.frozen
class Truth:
    """Everything that a figure of one pair depends on, and some things that it does not."""

    extractor: str
    head: str
    version: str
    data: str
    name: str
    images: int
    normalized: bool
    policy: str
    batch_size: int
    seed: int
    precision: str
    adapters: tuple[str, ...]
    bound: str
    sample: bool
    machine: int = 0

    def effective(self) -> tuple[Any, ...]:
        """Return what the figure is made of, written out."""
        if not self.normalized:
            order: tuple[Any, ...] = ("no normalization",)
        elif self.policy == "running":
            order = ("running",)
        else:
            batches = len(range(0, self.images, self.batch_size))
            order = (self.policy, batches, self.seed if batches > 1 else "no order")
        same = self.extractor, self.head, self.version, self.data, self.precision, self.adapters
        return same + order

    def correct(self, *more: Any) -> int:
        text = repr((self.effective(), self.machine, more)).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") % 100_000

    def asked(self) -> tuple[Any, ...]:
        """Return the question: without version, digest and bound, and with the name of the data."""
        order: tuple[Any, ...] = ("no normalization",)
        if self.normalized:
            order = (self.policy,) + ((self.batch_size, self.seed) if self.policy != "running" else ())
        images = self.data if self.sample else self.name
        return (self.extractor, self.head, images, self.precision, self.adapters, *order)

    def answers(self, other: Truth) -> bool:
        """Return whether a figure that was measured so is the one asked for."""
        return self.effective() == other.effective() and other.bound in ("", self.bound)


class World:
    """A registry, the list of what was measured in it, and what the next question must find."""

    def __init__(self, root: Path) -> None:
        self.registry = ck.Registry.init(root)
        self.root = root
        self.numbers = itertools.count(1)
        self.ticks = itertools.count(FIRST)
        self.log: list[tuple[Truth, Path]] = []  # with the file that points at the result
        self.measured: list[tuple[str, str]] = []
        self.machine = 0
        self.manifests: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
        self.functions: dict[str, str] = {}  # by pinned reference, and by the digest of the manifest
        for name in NAMES:
            self.publish(name)

    def publish(self, name: str, **changes: Any) -> None:
        """Publish new weights, or what is changed of the latest version."""
        import torch

        store, number = self.registry.store, next(self.numbers)
        if changes:
            if not self.manifests[name]:
                return
            made = attrs.evolve(self.manifests[name][self.latest(name)], **changes)
        else:
            payload = store.put_state({"weight": torch.full((1,), float(number))}, parameters=1)
            kind = name.split(".")[1]
            made = part(kind, payload=payload)
            data = attrs.evolve(made.contract.data, labels=LABELS)
            protocol = attrs.evolve(made.contract.protocol, norm="none" if number % 3 == 2 else "batch")
            made = attrs.evolve(made, contract=attrs.evolve(made.contract, data=data, protocol=protocol))
            if kind == "head" and self.manifests["a.extractor"]:
                made = attrs.evolve(made, parents=child_of(str(store.resolve("a.extractor").digest)))
        version = f"{number}.0.0"
        digest = str(store.publish(name, made, version=version).digest)
        made = self.manifests[name][version] = store.manifest(f"{name}@{version}")
        self.functions[f"{name}@{version}"] = self.functions[digest] = function_digest(made)

    def latest(self, name: str) -> str:
        return max(self.manifests[name], key=numbers)

    def pairs(self) -> list[tuple[str, str]]:
        """Return the latest extractors with the latest heads, by pinned references."""
        pinned = [f"{name}@{self.latest(name)}" for name in NAMES]
        return [(left, right) for left in pinned[:2] for right in pinned[2:]]

    def withdraw(self, name: str) -> None:
        """Withdraw the latest version, unless it is the only one."""
        if len(self.manifests[name]) > 1:
            latest = self.latest(name)
            self.registry.store.withdraw(name, latest, "not good")
            del self.manifests[name][latest]

    def pointers(self) -> list[Path]:
        return sorted(path for path in (self.root / "evidence").rglob("*") if path.is_file())

    def damage(self, which: int, how: str) -> None:
        """Damage a result, its pointer, or take the pointer away; what nobody can read was never measured."""
        result = [path for _, path in self.log]
        if not result:
            return
        pointer = result[which % len(result)]
        digest = f"sha256:{pointer.name}"
        if how == "document":
            path = self.registry.store.objects.path(digest)
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data.replace(b'"grade"', b'"krade"'))
        elif how == "pointer":
            pointer.chmod(0o644)
            pointer.write_bytes(b"sha256:" + b"0" * 64 + b"\n")
        elif how == "moved":  # under the key of another pair or of other conditions
            others = [match for match in result if match.parent != pointer.parent]
            if not others:
                return
            target = others[which % len(others)].parent / pointer.name
            target.write_bytes(pointer.read_bytes())
            self.settle(target)
            return
        else:
            pointer.unlink()
        self.settle(pointer)
        self.log = [entry for entry in self.log if entry[1] != pointer]
        self.registry.store.local_cache._file.discard()  # what was read while it was sound stays known until then

    def settle(self, *paths: Path) -> None:
        """Give what changed times of its own, so that no clock is too coarse to show it."""
        for path in paths:
            for item in (path, *list(path.parents)[:4]):
                if item.exists():
                    os.utime(item, (moment := next(self.ticks), moment))

    def ask(self, wanted: Wanted) -> ck.Matrix:
        """Ask for all pairs, with the figures that a measurement would give now."""
        split = SPLITS[wanted.split]
        steps = ADAPTERS[: wanted.adapters]
        between: Any = dict.fromkeys(self.pairs(), steps) if steps else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.registry.matrix(
                "*.extractor",
                "*.head",
                {"*": split},
                bn_policy=wanted.policy,
                batch_size=wanted.batch_size,
                seed=wanted.seed,
                precision=wanted.precision,
                fill=wanted.fill,
                adapters=between,
            )

    def truth(self, wanted: Wanted, pair: tuple[str, str]) -> Truth:
        """Return what a figure of this pair depends on now."""
        left, right = (self.manifests[side.split("@")[0]][side.split("@")[1]] for side in pair)
        split = SPLITS[wanted.split]
        protocols = (left.contract.protocol.norm, right.contract.protocol.norm)
        return Truth(
            self.functions[pair[0]],
            self.functions[pair[1]],
            cells.METRIC_VERSION,
            split.digest,
            split.name,
            len(split),
            "batch" in protocols,
            wanted.policy,
            wanted.batch_size,
            wanted.seed,
            wanted.precision,
            tuple(adapter.function for adapter in ADAPTERS[: wanted.adapters]),
            self.bound(pair[0]),
            split.sample,
            self.machine,
        )

    def bound(self, extractor: str) -> str:
        """Return the function of the head that gives the bound: a column, or else the first in the registry."""
        shown = [(name, self.latest(name)) for name in NAMES[2:]]
        beside = extractor.replace(".extractor", ".head").split("@")[0]
        names = sorted(NAMES[2:], key=lambda name: name != beside)
        others = [(name, version) for name in names for version in sorted(self.manifests[name], key=numbers)]
        for name, version in shown + others:
            for parent in self.manifests[name][version].parents:
                if self.functions[parent.component] == self.functions[extractor]:
                    return self.functions[f"{name}@{version}"]
        return ""

    def expected(self, truth: Truth) -> tuple[str, Truth | None]:
        """Return state and origin of what a question must find, by going through all that was ever measured."""
        state, result = "missing", None
        for value, _ in self.log:  # the newest that answers wins, else the newest of the same question
            if value.answers(truth):
                state, result = "measured", value
            elif value.asked() == truth.asked() and state != "measured":
                state, result = "stale", value
        return state, result

    def measure(
        self, lefts: Sequence[Any], rights: Sequence[Any], data: Any, conditions: Conditions, **how: Any
    ) -> list[Cell]:
        """Stand in for the measurement: figures are a hash of everything that they depend on."""
        for left in lefts:
            row: list[Cell] = []
            for right in rights:
                if (left.reference, right.reference) in how["only"]:
                    self.measured.append((left.reference, right.reference))
                    row.append(self.cell(left, right, data[left.reference], conditions, how))
            how["each"](row)
            for cell in row:
                self.note(cell, data[left.reference], how)
            young = (path for path in self.pointers() if path.stat().st_mtime > FIRST + 1e8)
            self.settle(*young, self.root / "tmp")
        return []

    def note(self, cell: Cell, split: Split, how: Any) -> None:
        """Write down what was kept of a cell; a result that is there already is as old as it was."""
        truth = self.truth(self.now, (cell.extractor, cell.head))
        folder = self.root / "evidence" / truth.extractor[13:] / truth.head[13:]
        known = {path.name for _, path in self.log}
        for pointer in folder.rglob("*"):
            if pointer.is_file() and len(pointer.name) == 64 and pointer.name not in known:
                document = self.registry.store.objects.path(f"sha256:{pointer.name}").read_text()
                if f",{truth.correct()},100000," in document and f'"machine":{truth.machine}' in document:
                    self.log.append((truth, pointer))

    def cell(self, left: Any, right: Any, split: Split, conditions: Conditions, how: Any) -> Cell:
        truth = self.truth(self.now, (left.reference, right.reference))
        bound = how["bounds"].get(left.reference)
        assert (bound.function if bound else "") == truth.bound
        figure = Figure(truth.correct() / 100_000, truth.correct(), 100_000, 0.0, 1.0)
        limit = truth.correct("bound", truth.bound)
        between = (how["adapters"] or {}).get((left.reference, right.reference), ())
        result = conditions.settings(
            ImageFacts(split.name, split.digest, len(split), sample=split.sample),
            batch_norm=truth.normalized,
            bound=truth.bound,
            adapters=[(entry.function, str(entry)) for entry in between],
        )
        best = Figure(limit / 100_000, limit, 100_000, 0.0, 1.0) if truth.bound else None
        plain = Cell(left.reference, right.reference, "direct", "none", "perfect", figure, figure, 0.1, best)
        return attrs.evolve(
            plain, common=("0", "1"), settings={**result, "machine": self.machine, "own": False}
        )

    now: Wanted = Wanted()


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@contextmanager
def world(**patches: Any) -> Iterator[World]:
    """Make a registry for one history; nothing is loaded or run."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPATKIT_CACHE", f"{folder}/cache")
        patch.setattr(cells, "METRIC_VERSION", "1")
        for name, value in patches.items():
            patch.setattr(stamps, name, value)
        made = World(Path(folder) / "parts")
        patch.setattr(matrix, "measure", made.measure)
        patch.setattr(PartLoader, "load", lambda parts, reference: None)
        yield made


def question(world: World, wanted: Wanted) -> None:
    """Ask, and hold every cell against the list."""
    world.now, world.measured = wanted, []
    pairs = world.pairs()
    before = {pair: world.expected(world.truth(wanted, pair)) for pair in pairs}
    result = world.ask(wanted)
    assert [(cell.extractor, cell.head) for cell in result.cells] == pairs
    states = {"missing": ("missing",), "stale": ("missing", "stale"), "none": ()}
    filled = states.get(wanted.fill, ("missing", "stale", "measured"))
    assert set(world.measured) == {pair for pair in pairs if before[pair][0] in filled}
    for pair in pairs:
        cell, (state, origin), truth = result.cell(*pair), before[pair], world.truth(wanted, pair)
        if state in filled:
            state, origin = "measured", truth
        assert cell.state == state, (pair, wanted)
        if origin is None:
            assert cell.restricted is None
            continue
        assert cell.restricted is not None and cell.restricted.correct == origin.correct()
        assert (cell.bound is None) == (origin.bound == "")
        if cell.bound is not None:
            assert cell.bound.correct == origin.correct("bound", origin.bound)
        assert bool(cell.reason) == (state == "stale")
    taken = sum(before[pair][0] == "measured" and pair not in world.measured for pair in pairs)
    assert result.settings["cells"]["taken"] == taken
    assert result.settings["cells"]["measured"] == len(world.measured)
    with warnings.catch_warnings():  # of damaged results
        warnings.simplefilter("ignore")
        checked = world.registry.check_all("*.extractor", "*.head", bn_policy=wanted.policy)
    for left, right, summary in checked.pairs():
        functions = world.functions[left], world.functions[right]
        bare = [
            entry
            for entry, _ in world.log
            if (entry.extractor, entry.head) == functions
            and not entry.adapters
            and (entry.policy == wanted.policy or not entry.normalized)
        ]
        fresh = [entry for entry in bare if entry.version == cells.METRIC_VERSION]
        assert summary.report.evidence == ("perfect" if fresh else "stale" if bare else "none")


def act(world: World, action: str, *args: Any) -> None:
    """Do one thing of a history."""
    if action == "ask":
        question(world, args[0])
    elif action == "weights":
        world.publish(args[0])
    elif action == "about":
        from compatkit.contracts.manifest import About

        world.publish(args[0], about=About(title=str(next(world.numbers))))
    elif action == "keyword":
        blueprint = next(iter(world.manifests[args[0]].values())).blueprint
        world.publish(args[0], blueprint=attrs.evolve(blueprint, kwargs={"in_chans": next(world.numbers)}))
    elif action == "withdraw":
        world.withdraw(args[0])
    elif action == "metric":
        cells.METRIC_VERSION = args[0]
    elif action == "machine":
        world.machine = args[0]
    elif action == "damage":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            world.damage(*args)
    elif action == "process":
        world.registry = ck.Registry.open(world.root)


names = st.sampled_from(NAMES)
asks = st.builds(
    Wanted,
    st.sampled_from([*SPLITS]),
    st.sampled_from(["batch", "running", "reestimate"]),
    st.sampled_from([3, 4, 64, 100]),
    st.sampled_from([0, 1]),
    st.sampled_from(["float32", "float32", "bfloat16"]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from(["missing", "missing", "none", "stale", "all"]),
)
usual = st.builds(Wanted, fill=st.sampled_from(["missing", "none", "stale"]))
actions = st.one_of(
    st.tuples(st.just("ask"), asks),
    st.tuples(st.just("ask"), usual),
    st.tuples(st.just("ask"), asks),
    st.tuples(st.sampled_from(["weights", "about", "keyword", "withdraw"]), names),
    st.tuples(st.just("metric"), st.sampled_from(["1", "2"])),
    st.tuples(st.just("machine"), st.sampled_from([0, 1])),
    st.tuples(
        st.just("damage"), st.integers(0, 9), st.sampled_from(["document", "pointer", "gone", "moved"])
    ),
    st.tuples(st.just("process")),
)


def histories(examples: int, longest: int) -> Callable[[Callable[..., None]], Any]:
    chosen = st.lists(actions, min_size=2, max_size=longest)
    return lambda test: settings(max_examples=examples, deadline=None)(given(chosen)(test))


@pytest.mark.case("F")
@histories(20, 8)
def test_nothing_is_ever_taken_for_something_else(history: list[Any]) -> None:
    with world(SETTLED_NS=0) as content:
        for action in history:
            act(content, *action)
        question(content, Wanted(fill="none"))


@pytest.mark.case("F")
@histories(10, 6)
def test_nor_while_all_files_are_young(history: list[Any]) -> None:
    with world() as content:
        for action in history:
            act(content, *action)
        question(content, Wanted(fill="none"))


@pytest.mark.slow
@histories(300, 25)
def test_nor_in_long_histories(history: list[Any]) -> None:
    with world(SETTLED_NS=0) as content:
        for action in history:
            act(content, *action)
        question(content, Wanted(fill="none"))
