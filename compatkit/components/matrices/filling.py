"""A matrix is a question to what was measured before; what is missing is measured, and nothing is taken for another.

Evidence comes first and needs no network: a cell is taken where a result is kept under exactly the conditions asked
for. What is left is measured as far as ``fill`` says and kept extractor by extractor, so that an interrupted run
loses the one that was running at most.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from compatkit.components.loading import held_out, keep, load
from compatkit.components.matrices.known import Asked, Known, Pair, look
from compatkit.components.matrices.sides import Component, Sides
from compatkit.components.matrices.where import Where
from compatkit.contracts import evidence as metric
from compatkit.contracts.evidence import ADAPTED, STATE, Cell
from compatkit.errors import UsageError, suggest
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.evaluation.planning import Prospect, notes_of, prospect
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

if TYPE_CHECKING:
    from compatkit.data.split import Split
    from compatkit.evaluation.matrix import Adapters

Fill = Literal["missing", "stale", "all", "none"]
FILLS: tuple[Fill, ...] = get_args(Fill)
Progress = Callable[[int, int, str], None]
Data = Sequence["Split"] | Mapping[str, "Split"]
DETAILED = 2500
"""Pairs up to which the findings of the check are told of every cell; above, `compatkit check` tells them of a pair."""
FIGURES = ("grade", "restricted", "unrestricted", "chance", "bound", "recovered", "difference")
MISSING = "nothing is kept under these conditions; fill it to measure"
NAMED = 3
"""Pairs whose figures differ that are named one by one."""


@attrs.frozen(kw_only=True, eq=False)
class Request:
    """A matrix that is asked for; see ``Registry.matrix``."""

    extractors: str | Sequence[str]
    heads: str | Sequence[str]
    data: Data | None  # None with fill="none" only
    conditions: Conditions
    where: Where = attrs.field(factory=Where)
    fill: Fill = "missing"
    adapters: Adapters | None = None
    record: bool = True
    progress: Progress | None = None


def check_fill(name: str) -> Fill:
    """Return ``name`` if it is a way of filling.

    Raises:
        UsageError: It is none.
    """
    for known in FILLS:
        if name == known:
            return known
    hint = suggest(name, FILLS)
    raise UsageError(f"Unknown fill {name!r:.80}; expected one of {', '.join(FILLS)}.{hint}", subject=name)


def answer(store: Store, asked: Request) -> Matrix:
    """Return the matrix that is asked for; see ``Registry.matrix``."""
    sides = Sides(store)
    lefts = sides.choose(asked.extractors, "extractor", asked.where)
    rights = sides.choose(asked.heads, "head", asked.where)
    bounds = sides.bounds(lefts, rights)
    tests = None if asked.data is None else {one.reference: held_out(one, asked.data) for one in lefts}
    images = None if tests is None else {name: ImageFacts.of(split) for name, split in tests.items()}
    between = {
        pair: [(one.function, str(one)) for one in steps] for pair, steps in (asked.adapters or {}).items()
    }
    known = look(store, lefts, rights, images, asked.conditions, bounds=bounds, between=between)
    table = Table(lefts, rights, known, asked.where)
    todo = table.wanted(asked.fill)
    if todo and tests is not None:
        fill(store, asked, table, bounds, tests, todo)
    return table.matrix(asked)


def fill(
    store: Store,
    asked: Request,
    table: Table,
    bounds: Mapping[str, Component],
    tests: Mapping[str, Split],
    todo: Sequence[Pair],
) -> None:
    """Measure pairs and keep what comes out, extractor by extractor.

    Args:
        store: Where parts are and results go.
        asked: Says how.
        table: Its cells are replaced.
        bounds: Head that gives the bound, by the extractor's reference.
        tests: Test images by the extractor's reference.
        todo: Pairs to measure.

    Raises:
        EnvironmentFailure: There is no such device.
        DataError: Too few images for batch statistics.
        IntegrityError: A part is damaged.
    """
    from compatkit.evaluation.matrix import measure
    from compatkit.training.precision import Precision

    device = Precision.choose(asked.conditions.device, "float32", None).device
    rows = {left for left, _ in todo}
    lefts = {one.reference: one for one in table.lefts if one.reference in rows}
    columns = {right for _, right in todo}
    rights = {one.reference: one for one in table.rights if one.reference in columns}
    own = {name: bounds[name] for name in lefts if name in bounds}
    wanted = {one.reference: one for one in (*lefts.values(), *rights.values(), *own.values())}
    parts = {name: load(store, one.place) for name, one in wanted.items()}
    heads = [parts[name] for name in rights]
    beside = [parts[one.reference] for one in own.values() if one.reference not in rights]
    keeps, differing = asked.record, list[str]()

    def each(row: list[Cell]) -> None:
        nonlocal keeps
        differing.extend(filter(None, map(table.take, row)))
        if keeps:
            keeps = keep(store, [parts[name] for name in lefts], [*heads, *beside], row)

    measure(
        [parts[name] for name in lefts],
        heads,
        {name: tests[name] for name in lefts},
        attrs.evolve(asked.conditions, device=device),
        adapters=asked.adapters,
        only=set(todo),
        bounds={name: parts[one.reference] for name, one in own.items()},
        each=each,
        progress=asked.progress,
    )
    if differing:
        _warn(differing)


def _warn(differing: Sequence[str]) -> None:
    more = len(differing) - NAMED
    told = [*differing[:NAMED], *([f"and {more:,} more"] if more > 0 else [])]
    warnings.warn(
        "Measured again under the same key, figures came out otherwise: "
        + "; ".join(told)
        + ". What is left to the machine (device, threads, version of torch) is not part of a key; both results are "
        "kept, and the newer one is shown.",
        stacklevel=5,
    )


@attrs.define(eq=False)
class Table:
    """All pairs: those of which something is kept, and what there is to say of the others.

    Attributes:
        cells: By pair.
        done: Pairs that were measured just now.
    """

    lefts: Sequence[Component]
    rights: Sequence[Component]
    known: Known
    where: Where
    cells: dict[Pair, Cell] = attrs.field(init=False, factory=dict)
    done: set[Pair] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        detailed = len(self.lefts) * len(self.rights) <= DETAILED
        for left in self.lefts:
            for right in self.rights:
                pair = left.reference, right.reference
                cell = self.known.cells.get(pair)
                if cell is None:
                    cell = _without_figure(
                        left, right, self.known.images[left.reference], self.known.asked[pair]
                    )
                elif detailed:
                    cell = self._with_findings(cell, left, right)
                refused = self.where.refused(cell, before=True)
                self.cells[pair] = cell.left_out(f"does not fit {refused}") if refused else cell

    def wanted(self, fill: Fill) -> list[Pair]:
        """Return the pairs that are to be measured."""
        states = {"missing": ("missing",), "stale": ("missing", "stale"), "none": ()}.get(
            fill, ("missing", "stale", "measured")
        )
        return [pair for pair, cell in self.cells.items() if cell.state in states]

    def take(self, cell: Cell) -> str:
        """Put a cell that was just measured in its place; return how it differs from one kept under the same key."""
        pair = cell.extractor, cell.head
        before = self.known.cells.get(pair)
        if pair in self.cells:
            self.cells[pair] = cell
            if cell.restricted is not None:
                self.done.add(pair)
        if before is None or before.grade == "stale" or before.restricted is None or cell.restricted is None:
            return ""
        if all(getattr(before, name) == getattr(cell, name) for name in FIGURES):
            return ""
        return (
            f"{cell.extractor} with {cell.head} was {before.restricted.accuracy:.4f} and is "
            f"{cell.restricted.accuracy:.4f}"
        )

    def matrix(self, asked: Request) -> Matrix:
        """Return the matrix; rows and columns of which everything is left out are left out too."""
        shown = {pair: self._shown(cell) for pair, cell in self.cells.items()}
        lefts, rights = self.lefts, self.rights
        if self.where.conditions:
            kept = [pair for pair, cell in shown.items() if cell.state != "left-out"]
            rows, columns = {left for left, _ in kept}, {right for _, right in kept}
            lefts = [one for one in lefts if one.reference in rows]
            rights = [one for one in rights if one.reference in columns]
        pairs = [(left.reference, right.reference) for left in lefts for right in rights]
        first, second = (tuple(one.described() for one in side) for side in (lefts, rights))
        chosen = {pair: shown[pair] for pair in pairs}
        return Matrix(first, second, tuple(chosen.values()), self._settings(asked, chosen))

    def _shown(self, cell: Cell) -> Cell:
        refused = "" if cell.state == "left-out" else self.where.refused(cell, before=False)
        return cell.left_out(f"does not fit {refused}") if refused else cell

    def _settings(self, asked: Request, cells: Mapping[Pair, Cell]) -> dict[str, Any]:
        """Return what all cells have in common, and how many of them are what."""
        states = Counter(cell.state for cell in cells.values())
        now = sum(cells[pair].state == "measured" for pair in self.done if pair in cells)
        counts = {"taken": states["measured"] - now, "measured": now}
        counts |= {name: states[name] for name in ("stale", "missing", "barred", "left-out") if states[name]}
        settings: dict[str, Any] = {
            "metric": f"{metric.METRIC} {metric.METRIC_VERSION}",
            "normalisation": asked.conditions.policy,
            "batch_size": asked.conditions.batch_size,
            "seed": asked.conditions.seed,
            "precision": asked.conditions.precision,
            "fill": asked.fill,
            "cells": counts,
        }
        return settings | ({"where": list(self.where.texts)} if self.where.texts else {})

    def _with_findings(self, cell: Cell, left: Component, right: Component) -> Cell:
        images = self.known.images[left.reference]
        found = _prospect(left, right, images, cell.settings)
        return attrs.evolve(cell, findings=(*notes_of(found, cell.settings), *cell.findings))


def _prospect(left: Component, right: Component, images: ImageFacts, settings: Mapping[str, Any]) -> Prospect:
    own, adapted = right.is_own(left), ADAPTED in settings
    return prospect(left.manifest, right.manifest, images, own=own, adapted=adapted)


def _without_figure(left: Component, right: Component, images: ImageFacts, asked: Asked) -> Cell:
    """Return the cell of a pair of which nothing is kept: missing, or barred with the reason."""
    found = _prospect(left, right, images, asked.settings)
    settings: dict[str, Any] = asked.settings | {"own": right.is_own(left)}
    return Cell(
        left.reference,
        right.reference,
        found.report.wiring,
        found.report.promise,
        "none",
        common=found.common,
        settings=settings if found.reason else settings | {STATE: "missing"},
        findings=notes_of(found, settings),
        reason=found.reason or MISSING,
    )
