"""Put adapters between an extractor and a head: plan them, build them, keep and load them as components."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.bridging import Place, fit_projection, own_extractor, standing
from compatkit.components.loading import load, pinned
from compatkit.components.publishing import contract_of
from compatkit.contracts.contract import Blueprint, Structural
from compatkit.contracts.manifest import About, Manifest
from compatkit.contracts.match import adapters_for
from compatkit.contracts.report import Report
from compatkit.contracts.stitch import FITTED, after, described, needed
from compatkit.data.split import Split
from compatkit.errors import IncompatibleError, UsageError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.matrix import LoadedPart
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference
from compatkit.registry.store import Store


def route(
    extractor: Manifest,
    head: Manifest,
    report: Report,
    given: Sequence[Adapter] = (),
    *,
    adapt: bool = False,
    data: Split | None = None,
) -> list[Place]:
    """Plan what stands between two parts; reads no weights and fits nothing.

    Args:
        extractor: Manifest.
        head: Manifest.
        report: What the check says of the two.
        given: Adapters at hand, which stand in this order.
        adapt: Whether to fill what is missing before, between and behind them.
        data: Images to fit on, for adapters with weights.

    Raises:
        IncompatibleError: The parts cannot be wired, or not with what is allowed; carries the report.
        UsageError: Images without ``adapt``.
    """
    if data is not None and not adapt:
        raise UsageError(
            "data= is what an adapter is fitted on; it goes with adapt=True. Add that, or leave data out."
        )
    if report.wiring == "refused":
        raise IncompatibleError(str(report), subject=report)
    if report.wiring == "direct" and not given:
        return []
    places: list[Place] = []
    ports, left = extractor.contract.structural.outputs, extractor.contract.data
    for target in (*given, None):
        inputs = target.takes if target is not None else head.contract.structural.inputs
        planned = adapters_for(ports, inputs, left, target.data if target is not None else head.contract.data)
        _allow(planned, report, before=target, adapt=adapt, data=data)
        for blueprint in planned:
            places.append(Place(blueprint, ports, after(ports, blueprint)))
            ports = places[-1].gives
        if target is not None:
            places.append(Place(target.blueprint, ports, after(ports, target.blueprint), target))
            ports = places[-1].gives
    return places


def needs_fit(report: Report) -> bool:
    """Tell whether two parts can be wired with an adapter whose weights are fitted."""
    adaptable = [one for one in report.findings if one.severity == "adaptable"]
    return report.wiring == "needs-adapter" and any(one.remedy.split(":")[0] in FITTED for one in adaptable)


def put_in(
    store: Store, places: Sequence[Place], extractor: LoadedPart, head: LoadedPart, data: Split | None
) -> list[Adapter]:
    """Return the adapters of a route, in order: those at hand, those built, those fitted on ``data``.

    Raises:
        IncompatibleError: The extractor that the head was trained with, whose features are the aim of a fit, is not
            in the registry, or gives features that cannot be paired.
        DataError: The images, or their features, are nothing to fit on.
    """
    made: list[Adapter] = []
    for place in places:
        if place.given is not None:
            adapter = place.given
        elif place.blueprint.model in FITTED and data is not None:
            own = own_extractor(store, head)
            adapter = fit_projection(place, extractor, own, data, before=made)
        else:
            adapter = standing(place, build_adapter(place.blueprint), extractor)
        made.append(adapter)
    return made


def load_adapter(
    store: Store, reference: str | Reference, *, verify: Verify = "auto", admitted: bool = False
) -> Adapter:
    """Load a published adapter; its probe is checked.

    Raises:
        NotFound: Nothing has that name or version.
        UsageError: It is no adapter.
        IntegrityError: The bytes, or the function they make, are not what the manifest promises.
    """
    resolved = reference if isinstance(reference, Reference) else store.resolve(reference)
    manifest = store.manifest(resolved if resolved.version else str(resolved.digest))
    if manifest.kind != "adapter":
        raise UsageError(f"{pinned(resolved)} is of kind {manifest.kind}, where an adapter is expected.")
    ports, part = manifest.contract.structural, load(store, resolved, verify=verify, admitted=admitted)
    return Adapter(
        manifest.blueprint,
        part.module,
        ports.inputs,
        ports.outputs,
        manifest.contract.data,
        manifest.parents,
        manifest.training,
        part.reference,
        part.digest,
    )


def publish_adapter(
    store: Store, name: str, adapter: Adapter, *, version: str | None = None, about: About | None = None
) -> Reference:
    """Keep an adapter as a component; see ``Registry.publish``."""
    ports = Structural(adapter.takes, adapter.gives)
    contract = contract_of(adapter.module, adapter.blueprint, ports, adapter.data)
    parameters = sum(one.numel() for one in adapter.module.parameters())
    notes = about or About()
    manifest = Manifest(
        kind="adapter",
        about=attrs.evolve(notes, title=notes.title or described(adapter.blueprint)),
        blueprint=adapter.blueprint,
        payload=store.put_state(adapter.module.state_dict(), parameters=parameters),
        contract=contract,
        training=dict(adapter.training),
        parents=adapter.parents,
    )
    return store.publish(name, manifest, version=version)


def _allow(
    planned: Sequence[Blueprint], report: Report, *, before: Adapter | None, adapt: bool, data: Split | None
) -> None:
    """Refuse adapters that were not asked for, or that cannot be had."""
    if not planned:
        return
    texts = "; ".join(map(needed, planned))
    fitted = [needed(one) for one in planned if one.model in FITTED]
    place = f"the adapter {before}" if before is not None else "the head"
    if not adapt:
        more = " and data= (a Split of unlabelled images)" if fitted else ""
        text = f"Missing before {place}: {texts}. Pass adapt=True{more} to put it in."
    elif fitted and before is not None:
        text = f"Missing before {place}: {fitted[0]}. It can be fitted right before a head only; take another adapter."
    elif fitted and data is None:
        text = (
            f"A fitted adapter is needed: {fitted[0]}. Pass data=, a Split of unlabelled images such as the extractor "
            "was trained on, to fit it."
        )
    else:
        return
    raise IncompatibleError(f"{report}\n{text}", subject=report)
