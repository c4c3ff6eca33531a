"""From two parts and images to a chosen bridge, for one pair or many."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compatkit.components.bridges.answering import measurable
from compatkit.components.bridges.choosing import choose, reason
from compatkit.components.bridges.climbing import Climb, Progress
from compatkit.components.bridges.dividing import repeated
from compatkit.components.bridges.ground import Ground, ground
from compatkit.components.bridges.judging import largest
from compatkit.components.bridges.keeping import HEAD, outcome, put_together
from compatkit.components.bridges.results import Bridge, Step
from compatkit.components.bridges.rungs import ADAPTERS, BEST, TAUGHT, On, chosen_rungs
from compatkit.components.bridging import own_extractor
from compatkit.components.loading import load
from compatkit.contracts.check import check
from compatkit.contracts.manifest import Parent
from compatkit.contracts.report import Report
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, UsageError, type_of
from compatkit.evaluation.matrix import LoadedPart
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

SEEDS = 2**63


@attrs.frozen(kw_only=True, eq=False)
class Wish:
    """A bridge that is asked for; see ``Registry.bridge``."""

    data: Split
    labels: Split | None = None
    test: Split | None = None
    head_data: Split | None = None
    rungs: Sequence[str] | None = None
    until: float | None = 0.8
    images: int = 1000
    on: On = "src"
    seed: int = 0
    progress: Progress | None = None

    def __attrs_post_init__(self) -> None:
        """Check what no type checks."""
        for name in ("data", "labels", "test", "head_data"):
            value = getattr(self, name)
            if not isinstance(value, Split) and not (value is None and name != "data"):
                raise UsageError(
                    f"{name}= expects a Split of images, got {type_of(value)}. Pass data.train of a data set."
                )
        for name in ("labels", "test"):
            value = getattr(self, name)
            if value is not None and not value.labelled:
                raise UsageError(f"{name}= are images with their classes; {value.name} has none.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < SEEDS:
            raise UsageError(f"seed= is a whole number from 0 to below 2**63, got {self.seed!r:.40}.")
        known = isinstance(self.until, int | float) and not isinstance(self.until, bool)
        if self.until is not None and not (known and 0 <= self.until <= 1):
            raise UsageError(f"until= is an agreement from 0 to 1, or None, got {self.until!r:.40}.")


def bridge(store: Store, extractor: LoadedPart, head: LoadedPart, report: Report, wish: Wish) -> Bridge:
    """Climb the ladder between two parts and choose; see ``Registry.bridge``."""
    rungs = chosen_rungs(wish.rungs, wish.labels is not None)
    base = ground(
        extractor,
        head,
        own_extractor(store, head),
        wish.data,
        images=wish.images,
        on=wish.on,
        head_data=wish.head_data,
        seed=wish.seed,
    )
    climb = Climb(base, wish.labels, wish.test)
    steps = [_recorded(one, base) for one in climb.climb(rungs, wish.until, wish.progress)]
    chosen = choose(steps)
    left = tuple(rungs[len(steps) :])
    made = put_together(chosen, report)
    facts = _facts(wish, base, climb)
    notes = [one for one in (reason(chosen, steps), repeated(wish.data), *climb.notes(steps)) if one]
    if left:
        notes.append(
            f"Not climbed, as {steps[-1].rung} fits and agrees on {wish.until} at least: {', '.join(left)}."
        )
    return Bridge(
        extractor.reference, head.reference, tuple(steps), chosen.rung, made, facts, tuple(notes), left
    )


def between(
    store: Store,
    extractors: Sequence[Reference],
    heads: Sequence[Reference],
    data: Mapping[str, Split],
    rung: str,
    *,
    tests: Mapping[str, Split],
    images: int,
    seed: int,
    progress: Progress | None,
) -> dict[tuple[str, str], Bridge]:
    """Return a bridge for every pair; see ``Registry.bridges.between``."""
    rungs = _rungs_between(rung)
    if not isinstance(data, Mapping):
        raise UsageError(f"data= expects images by the extractors' names, got {type_of(data)}.")
    pairs = [(left, right) for left in extractors for right in heads]
    found: dict[tuple[str, str], Bridge] = {}
    for number, (left, right) in enumerate(pairs):
        if progress is not None:
            progress(number, len(pairs), f"{left.name} + {right.name}")
        mine, theirs = load(store, left), load(store, right)
        if theirs.is_own(mine):
            continue
        if left.name not in data:
            raise DataError(
                f"{left.name} has no images to fit a bridge on; they were given for {', '.join(data)}."
            )
        report = check(mine.manifest, theirs.manifest)
        test, note = _tests_of(theirs, tests.get(left.name))
        wish = Wish(data=data[left.name], test=test, rungs=rungs, until=None, images=images, seed=seed)
        try:
            if report.wiring == "refused":
                raise IncompatibleError("they cannot be wired")
            made = bridge(store, mine, theirs, report, wish)
            found[mine.reference, theirs.reference] = attrs.evolve(made, notes=(*made.notes, *note))
        except (IncompatibleError, DataError) as error:
            of_images = isinstance(error, DataError) and error.subject is None
            if of_images:
                raise
            warnings.warn(
                f"{mine.reference} with {theirs.reference} has no bridge by {rung}: {error}", stacklevel=4
            )
    return found


def _facts(wish: Wish, base: Ground, climb: Climb) -> dict[str, Any]:
    """Return on what a ladder stands, as JSON values."""
    return {
        "data": {"name": base.fit.name, "digest": base.fit.digest, "images": len(base.fit)},
        "paired_on": {
            "on": wish.on,
            "name": base.pairs.name,
            "digest": base.pairs.digest,
            "images": len(base.pairs),
        },
        "held_out": len(base.held),
        "largest": largest(climb.wanted),
        "until": wish.until,
        "seed": wish.seed,
        "reference": climb.reference_accuracy(),
    }


def _rungs_between(rung: str) -> list[str]:
    """Return the rungs that a matrix climbs.

    Raises:
        UsageError: The rung puts no adapter between the parts, or is none.
    """
    if rung not in (*ADAPTERS, BEST):
        chosen_rungs([rung], True)  # a name that is none
        raise UsageError(
            f"The rung {rung} puts no adapter between the parts; those that do without labels are "
            f"{', '.join(ADAPTERS)}, or {BEST} for the one in closed form that agrees most.",
            subject=rung,
        )
    return ["statistics", *(one for one in ADAPTERS if one not in TAUGHT)] if rung == BEST else [rung]


def _recorded(step: Step, base: Ground) -> Step:
    """Return a step whose adapter states what came of it."""
    made = step.candidate
    if made is None or made.fitted is None:
        return step
    adapter = made.fitted
    parents = (*adapter.parents, Parent(HEAD, base.head.digest))
    facts = {**adapter.training, **outcome(step)}
    fitted = attrs.evolve(adapter, parents=parents, training=facts)
    return attrs.evolve(step, candidate=attrs.evolve(made, fitted=fitted))


def _tests_of(head: LoadedPart, test: Split | None) -> tuple[Split | None, tuple[str, ...]]:
    """Return test images that nobody asked for by name, if the head knows a class of them; else why not."""
    if test is None or measurable(test, head):
        return test, ()
    return None, (
        f"No accuracy is measured: {test.name} holds no image of a class that {head.reference} knows.",
    )
