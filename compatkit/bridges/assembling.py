"""From two parts and images to a chosen bridge, and from a bridge to components."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compatkit.bridges.candidate import Candidate
from compatkit.bridges.climbing import Climb, Progress, choose, residual_of
from compatkit.bridges.ground import Ground, ground
from compatkit.bridges.results import Bridge, Step
from compatkit.bridges.rungs import ADAPTERS, BEST, TAUGHT, On, chosen_rungs
from compatkit.bridging import own_extractor
from compatkit.compatibility import check
from compatkit.components import load, pinned, registered
from compatkit.contract import Port, Protocol, Statistical
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, UsageError
from compatkit.evaluation.adapter import ADAPTS, TARGETS, Adapter
from compatkit.evaluation.matrix import LoadedPart
from compatkit.evaluation.recombination import Recombination
from compatkit.registry.manifest import About, Manifest, Parent
from compatkit.registry.names import Reference
from compatkit.registry.store import Store
from compatkit.seams import load_adapter, publish_adapter
from compatkit.verdict import Report

HEAD, BEGAN = "head", "initialised_from"
"""Relations of a bridge's adapter to the head, and of a refitted head to the one it was."""


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
                    f"{name}= expects a Split of images, got a {type(value).__name__}. Pass data.train of a data set."
                )
        for name in ("labels", "test"):
            value = getattr(self, name)
            if value is not None and not value.labelled:
                raise UsageError(f"{name}= are images with their classes; {value.name} has none.")
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
    facts = {
        "data": {"name": base.fit.name, "digest": base.fit.digest, "images": len(base.fit)},
        "paired_on": {
            "on": wish.on,
            "name": base.pairs.name,
            "digest": base.pairs.digest,
            "images": len(base.pairs),
        },
        "held_out": len(base.held),
        "until": wish.until,
        "seed": wish.seed,
        "reference": climb.reference_accuracy(),
    }
    made = put_together(chosen, report)
    notes = tuple(climb.notes(steps))
    return Bridge(extractor.reference, head.reference, tuple(steps), chosen.rung, made, facts, notes)


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
    """Return a bridge for every pair; see ``Registry.bridges_between``."""
    if rung not in (*ADAPTERS, BEST):
        chosen_rungs([rung], True)
        raise UsageError(
            f"The rung {rung} puts no adapter between the parts; those that do without labels are "
            f"{', '.join(ADAPTERS)}, or {BEST} for the one in closed form that agrees most.",
            subject=rung,
        )
    rungs = (
        ["direct", "statistics", *(one for one in ADAPTERS if one not in TAUGHT)] if rung == BEST else [rung]
    )
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
        test = tests.get(left.name)
        wish = Wish(data=data[left.name], test=test, rungs=rungs, until=None, images=images, seed=seed)
        try:
            if report.wiring == "refused":
                raise IncompatibleError("they cannot be wired")
            found[mine.reference, theirs.reference] = bridge(store, mine, theirs, report, wish)
        except IncompatibleError as error:
            warnings.warn(
                f"{mine.reference} with {theirs.reference} has no bridge by {rung}: {error}", stacklevel=4
            )
    return found


def candidate_of(step: Step) -> Candidate:
    """Return the bridge of a step.

    Raises:
        UsageError: The rung was left out.
    """
    if step.candidate is None:
        raise UsageError(f"The rung {step.rung} was left out: {step.note}", subject=step.rung)
    return step.candidate


def put_together(step: Step, report: Report) -> Recombination:
    """Return the whole network of a step, in eval mode.

    Raises:
        UsageError: The rung was left out.
    """
    made = candidate_of(step)
    head = made.ground.head
    if made.refitted:
        head = attrs.evolve(head, module=made.head)
    return _recombined(made, head, made.adapters, report)


def publish(
    store: Store, name: str, found: Bridge, rung: str | None, about: About | None
) -> dict[str, Reference]:
    """Keep a bridge; see ``Registry.publish_bridge``."""
    from compatkit.recombinations import publish_recombination

    step = found.step(found.chosen if rung is None else rung)
    made = candidate_of(step)
    report, kept = found.recombination.report, dict[str, Reference]()
    head, adapters = made.ground.head, list(made.adapters)
    if made.fitted is not None:
        kept["adapter"] = publish_adapter(store, f"{name}.adapter", made.fitted, about=about)
        adapters[-1] = load_adapter(store, kept["adapter"])
    if made.refitted:
        kept["head"] = _publish_head(store, f"{name}.head", step, made)
        head = load(store, kept["head"])
    whole = _recombined(made, head, adapters, report)
    kept["recombination"] = publish_recombination(store, name, whole, about=about)
    return kept


def _recombined(
    made: Candidate, head: LoadedPart, adapters: Sequence[Adapter], report: Report
) -> Recombination:
    estimate = made.statistics()
    return Recombination.of(
        made.ground.extractor,
        head,
        report,
        normalisation="running" if estimate is None else "reestimate",
        statistics=estimate,
        adapters=adapters,
    )


def _recorded(step: Step, base: Ground) -> Step:
    """Return a step whose adapter states what came of it."""
    made = step.candidate
    if made is None or made.fitted is None:
        return step
    adapter = made.fitted
    parents = (*adapter.parents, Parent(HEAD, base.head.digest))
    facts = {**adapter.training, **_outcome(step)}
    fitted = attrs.evolve(adapter, parents=parents, training=facts)
    return attrs.evolve(step, candidate=attrs.evolve(made, fitted=fitted))


def _outcome(step: Step) -> dict[str, Any]:
    if step.agreement is None:
        return {}
    return {
        "agreement": step.agreement.accuracy,
        "held_out": step.agreement.count,
        "seconds": round(step.seconds, 3),
    }


def _publish_head(store: Store, name: str, step: Step, made: Candidate) -> Reference:
    """Publish a head whose weights were changed: of the old one's network, promising nothing that it promised."""
    from compatkit import promises

    base = made.ground
    old = base.head.manifest
    data = {"name": base.fit.name, "digest": base.fit.digest, "images": len(base.fit)}
    training = {**made.method, "data": data, **_outcome(step)}
    if (left := residual_of(made)) is not None:
        training["residual"] = left
    protocol = Protocol(old.contract.protocol.normalisation)
    blueprint, structural = old.blueprint, old.contract.structural
    if made.entries:
        entries = {**dict(blueprint.entries), **dict(made.entries)}
        blueprint = attrs.evolve(blueprint, entries=tuple(entries.items()))
        structural = attrs.evolve(structural, inputs=(_entering(base),))
    manifest = Manifest(
        kind="head",
        about=attrs.evolve(old.about, title=f"{step.rung} to {base.extractor.reference}"),
        blueprint=blueprint,
        payload=old.payload,
        contract=attrs.evolve(
            old.contract, structural=structural, protocol=protocol, statistical=Statistical()
        ),
        training=training,
        parents=(
            Parent(BEGAN, base.head.digest),
            Parent(ADAPTS, base.extractor.digest),
            Parent(TARGETS, base.own.digest),
        ),
    )
    state = {key: value.detach().clone() for key, value in made.head.state_dict().items()}
    return registered(
        store, name, manifest, state, lambda kept, module: promises.publish(store, name, kept, module)
    )


def _entering(base: Ground) -> Port:
    """Return the port of a head that takes the features themselves in place of those of its own extractor."""
    index = int(base.place.blueprint.kwargs.get("port", 0))
    came, old = base.place.takes[index], base.head.manifest.contract.structural.inputs[index]
    axis = 1 if old.layout in ("NCHW", "NC") else -1
    shape = list(old.shape)
    shape[axis] = came.shape[axis]
    return attrs.evolve(old, shape=tuple(shape), range=came.range)


def references(kept: dict[str, Reference]) -> dict[str, str]:
    """Return pinned references by what they are."""
    return {what: pinned(one) for what, one in kept.items()}
