"""Adapters between an extractor and a head: plan, build, fit, publish and load them."""

from __future__ import annotations

from collections.abc import Sequence

from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.drafts import Draft
from compatkit.components.loading import load
from compatkit.components.projecting import AdapterSlot, adapter_at, fit_projection, own_extractor
from compatkit.contracts.contract import Blueprint, Structural
from compatkit.contracts.manifest import About
from compatkit.contracts.match import adapters_for
from compatkit.contracts.report import Report
from compatkit.contracts.stitch import FITTED, describe, describe_missing, ports_after
from compatkit.data.split import Split
from compatkit.errors import IncompatibleError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.component import Component
from compatkit.registry.names import Reference
from compatkit.registry.resolving import wrong_kind
from compatkit.registry.store import Store


def route(
    extractor: Component,
    head: Component,
    report: Report,
    existing: Sequence[Adapter] = (),
    *,
    insert_adapters: bool = False,
    data: Split | None = None,
) -> list[AdapterSlot]:
    """Plan the adapters between two parts; reads no weights and fits nothing.

    Args:
        extractor: Extractor of the features.
        head: Head that takes the features.
        report: Check of the two.
        existing: Adapters to use, in this order.
        insert_adapters: Whether to add missing adapters before, between and after them.
        data: Images to fit on, for adapters with weights.

    Raises:
        IncompatibleError: The parts cannot be wired, or not with what is allowed; carries the report.
    """
    if report.wiring == "refused":
        raise IncompatibleError(str(report), subject=report)
    if report.wiring == "direct" and not existing:
        return []
    slots: list[AdapterSlot] = []
    left, right = extractor.manifest.contract, head.manifest.contract
    ports = left.structural.outputs
    for target in (*existing, None):
        inputs = target.takes if target is not None else right.structural.inputs
        planned = adapters_for(ports, inputs, left.data, target.data if target is not None else right.data)
        _allow(planned, report, before=target, insert_adapters=insert_adapters, data=data)
        for blueprint in planned:
            slots.append(AdapterSlot(blueprint, ports, ports_after(ports, blueprint)))
            ports = slots[-1].gives
        if target is not None:
            slots.append(AdapterSlot(target.blueprint, ports, ports_after(ports, target.blueprint), target))
            ports = slots[-1].gives
    return slots


def needs_fit(report: Report) -> bool:
    """Return whether two parts need an adapter whose weights are fitted."""
    adaptable = [finding for finding in report.findings if finding.severity == "adaptable"]
    return report.wiring == "needs-adapter" and any(
        finding.remedy.split(":")[0] in FITTED for finding in adaptable
    )


def make_adapters(
    store: Store, slots: Sequence[AdapterSlot], extractor: Component, head: Component, data: Split | None
) -> list[Adapter]:
    """Return the adapters of a route, in order: existing, built, or fitted on ``data``.

    Args:
        store: Store of the registry.
        slots: Slots of the route, in order.
        extractor: Extractor before the first slot.
        head: Head after the last slot.
        data: Unlabeled images for fits; None if nothing is fitted.

    Raises:
        IncompatibleError: The head's own extractor, whose features are the target of a fit, is not in the registry,
            or its features cannot be paired.
        DataError: The images, or their features, are unsuitable for a fit.
    """
    adapters: list[Adapter] = []
    for slot in slots:
        if slot.adapter is not None:
            adapter = slot.adapter
        elif slot.blueprint.model in FITTED and data is not None:
            own = own_extractor(store, head)
            adapter = fit_projection(slot, extractor, own, data, before=adapters)
        else:
            adapter = adapter_at(slot, build_adapter(slot.blueprint), extractor)
        adapters.append(adapter)
    return adapters


def load_adapter(store: Store, reference: str | Reference) -> Adapter:
    """Load a published adapter; its probe is checked.

    Args:
        store: Store of the registry.
        reference: Reference of a component of kind ``adapter``.

    Raises:
        NotFound: The reference does not resolve.
        UsageError: The component is not an adapter.
        IntegrityError: The bytes, or the resulting function, do not match the manifest.
    """
    resolved = store.resolve(reference)
    kind = store.manifest(resolved).kind
    if kind != "adapter":
        raise wrong_kind(resolved, kind, ["adapter"], str(reference))
    return adapter_of(load(store, resolved))


def adapter_of(part: Component) -> Adapter:
    """Convert a component of kind ``adapter``."""
    manifest, ports = part.manifest, part.manifest.contract.structural
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
    """Publish an adapter; see ``Registry.publish``."""
    shape = Structural(adapter.takes, adapter.gives)
    title = describe(adapter.blueprint)
    draft = Draft.of("adapter", adapter.blueprint, adapter.module, shape, adapter.data, title=title)
    manifest = draft.manifest(draft.put(store), dict(adapter.training), adapter.parents, about or About())
    return store.publish(name, manifest, version=version)


def _allow(
    planned: Sequence[Blueprint],
    report: Report,
    *,
    before: Adapter | None,
    insert_adapters: bool,
    data: Split | None,
) -> None:
    """Raise for adapters that were not requested, or that cannot be made."""
    if not planned:
        return
    texts = "; ".join(map(describe_missing, planned))
    fitted = [describe_missing(blueprint) for blueprint in planned if blueprint.model in FITTED]
    target = f"the adapter {before}" if before is not None else "the head"
    if not insert_adapters:
        more = " and data= (a Split of unlabeled images)" if fitted else ""
        text = f"Missing before {target}: {texts}. Pass insert_adapters=True{more}."
    elif fitted and before is not None:
        text = f"Missing before {target}: {fitted[0]}. It can only be fitted directly before a head."
    elif fitted and data is None:
        text = (
            f"A fitted adapter is needed: {fitted[0]}. Pass data=, a Split of unlabeled images such as the extractor "
            "was trained on, to fit it."
        )
    else:
        return
    raise IncompatibleError(f"{text}\n{report}", subject=report)
