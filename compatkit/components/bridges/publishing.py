"""Store a bridge as components: the recombination, its adapter or refitted head, and records of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compatkit.components.bridges.candidates import Candidate
from compatkit.components.bridges.inputs import BridgeInputs
from compatkit.components.bridges.ladder import Bridge, RungResult
from compatkit.components.bridges.records import BRIDGED
from compatkit.components.loading import load
from compatkit.components.recombinations import publish_recombination
from compatkit.components.registering import register
from compatkit.components.stitching import load_adapter, publish_adapter
from compatkit.contracts.check import check
from compatkit.contracts.contract import Port, Protocol, Statistical
from compatkit.contracts.manifest import About, Manifest, Parent
from compatkit.contracts.report import Report
from compatkit.errors import NotFound, UsageError
from compatkit.evaluation.adapter import ADAPTS, TARGETS, Adapter
from compatkit.evaluation.component import Component
from compatkit.evaluation.recombination import Recombination
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

HEAD, INITIALIZED_FROM = "head", "initialised_from"
"""Relations of a bridge's adapter to the head, and of a refitted head to its origin."""


def assemble(step: RungResult, report: Report) -> Recombination:
    """Return the complete network of a rung, in eval mode.

    Args:
        step: Result of a rung that was not left out.
        report: Check of the two original parts.

    Raises:
        UsageError: The rung was left out.
    """
    candidate = step.built
    head = candidate.inputs.head
    if candidate.refitted:
        head = attrs.evolve(head, module=candidate.head, manifest=_manifest(step, candidate))
    return _recombined(candidate, head, candidate.adapters, report)


def publish(
    store: Store,
    name: str,
    result: Bridge,
    *,
    rung: str | None = None,
    about: About | None = None,
    accept_doubtful: bool = False,
) -> dict[str, Reference]:
    """Publish a bridge; see ``Registry.publish``."""
    check_names(store, name)
    step = result.step(result.chosen if rung is None else rung)
    candidate, published = step.built, dict[str, Reference]()
    check_verdict(step, name, accept_doubtful)
    head, adapters = candidate.inputs.head, list(candidate.adapters)
    if candidate.fitted is not None:
        published["adapter"] = publish_adapter(store, f"{name}.adapter", candidate.fitted, about=about)
        adapters[-1] = load_adapter(store, published["adapter"])
    if candidate.refitted:
        published["head"] = _publish_head(store, f"{name}.head", _manifest(step, candidate), candidate)
        head = load(store, published["head"])
    network = _recombined(candidate, head, adapters, result.recombination.report)
    judgment = {"bridge": _judgment(step, result.details, candidate.inputs.head)}
    published["recombination"] = publish_recombination(store, name, network, about=about, training=judgment)
    return published


def check_names(store: Store, name: str) -> None:
    """Raise if a refitted head would replace a trained one under its name.

    Args:
        store: Store of the registry.
        name: Name to publish the bridge under.

    Raises:
        UsageError: ``<name>.head`` exists and was not refitted by a bridge.
    """
    try:
        existing = store.resolve(f"{name}.head")
    except NotFound:
        return
    if not any(parent.relation == ADAPTS for parent in store.manifest(existing).parents):
        raise UsageError(
            f"{existing.name} is a trained head; publishing a bridge as {name} would replace it by a refitted one. "
            "Publish the bridge under another name.",
            subject=name,
        )


def check_verdict(step: RungResult, name: str, accept_doubtful: bool) -> None:
    """Raise if a rung is not shown to fit, unless ``accept_doubtful``.

    Args:
        step: Result of the rung.
        name: Name to publish the bridge under.
        accept_doubtful: Accept every verdict.

    Raises:
        UsageError: The verdict is not ``fit``.
    """
    if step.meaning != "fit" and not accept_doubtful:
        raise UsageError(
            f"The verdict on the rung {step.rung} is {step.meaning!r}, so it is not published as {name}. Measure it "
            "on labeled images (test=), train with labels (labels=), try other rungs, or pass accept_doubtful=True.",
            subject=name,
        )


def outcome(step: RungResult) -> dict[str, Any]:
    """Return the judgment recorded with a fit."""
    if step.agreed is None:
        return {}
    return {
        "agreement": step.agreed.figure.accuracy,
        "chance": step.agreed.chance,
        "kappa": step.agreed.kappa,
        "held_out": step.agreed.figure.count,
        "seconds": round(step.seconds, 3),
    }


def _recombined(
    candidate: Candidate, head: Component, adapters: Sequence[Adapter], report: Report
) -> Recombination:
    estimate, extractor = candidate.statistics(), candidate.inputs.extractor
    return Recombination.of(
        extractor,
        head,
        # A refitted head takes other features than the one in the report.
        check(extractor.manifest, head.manifest, own=head.is_own(extractor))
        if candidate.refitted
        else report,
        bn_policy="running" if estimate is None else "reestimate",
        statistics=estimate,
        adapters=adapters,
    )


def _judgment(step: RungResult, details: Mapping[str, Any], head: Component) -> dict[str, Any]:
    """Return the record of a bridge: its rung, its judgment, and the images it is based on."""
    judgment = {"rung": step.rung, **outcome(step), "says": step.meaning, "seed": details["seed"]}
    if step.labels:
        judgment["labels"] = step.labels
    if step.checked is not None:
        figure = step.checked.figure
        judgment["checked"] = {
            "share": figure.accuracy,
            "images": figure.count,
            "chance": step.checked.chance,
        }
    basis = {"reference": details["reference"], "paired_on": dict(details["paired_on"])}
    return judgment | basis | {BRIDGED: head.digest}


def _manifest(step: RungResult, candidate: Candidate) -> Manifest:
    """Return the manifest of a refitted head: the old network, without its promises."""
    base = candidate.inputs
    old = base.head.manifest
    training = {**candidate.method, "data": base.fit_facts, **outcome(step)}
    protocol = Protocol(old.contract.protocol.norm)
    blueprint, structural = old.blueprint, old.contract.structural
    if candidate.entries:
        entries = {**dict(blueprint.entries), **candidate.entries}
        blueprint = attrs.evolve(blueprint, entries=tuple(entries.items()))
        structural = attrs.evolve(structural, inputs=(_entering(base),))
    return Manifest(
        kind="head",
        about=attrs.evolve(old.about, title=f"{step.rung} to {base.extractor.reference}"),
        blueprint=blueprint,
        payload=old.payload,
        contract=attrs.evolve(
            old.contract, structural=structural, protocol=protocol, statistical=Statistical()
        ),
        training=training,
        parents=(
            Parent(INITIALIZED_FROM, base.head.digest),
            Parent(ADAPTS, base.extractor.digest),
            Parent(TARGETS, base.own.digest),
        ),
    )


def _publish_head(store: Store, name: str, manifest: Manifest, candidate: Candidate) -> Reference:
    state = {key: value.detach().clone() for key, value in candidate.head.state_dict().items()}
    return register(store, name, manifest, state)


def _entering(base: BridgeInputs) -> Port:
    """Return the input port of a head that takes the extractor's features directly."""
    index = int(base.slot.blueprint.kwargs.get("port", 0))
    features, old = base.slot.takes[index], base.head.manifest.contract.structural.inputs[index]
    axis = 1 if old.layout in ("NCHW", "NC") else -1
    shape = list(old.shape)
    shape[axis] = features.shape[axis]
    return attrs.evolve(old, shape=tuple(shape), range=features.range)
