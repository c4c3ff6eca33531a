"""Recombinations as components: pinned by digest, verified when published and when loaded.

The network is composed from its parts on every load. Its payload holds only what they lack: estimated statistics, and
weights of adapters that are not components.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.composition import ADAPTER, EXTRACTOR, HEAD, AdapterOrigin, Composition, Pin
from compatkit.components.loading import PartLoader, check_signature, check_version, load
from compatkit.components.pairs import check_pair
from compatkit.components.probes import probe_of, remember_proof
from compatkit.components.stitching import adapter_of
from compatkit.components.verification import verify_contract, verify_once
from compatkit.contracts.batchnorm import estimates
from compatkit.contracts.check import Report, check
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.kinds import EXTRACTORS, HEADS
from compatkit.contracts.manifest import About, Edge, Manifest, Parent, Payload
from compatkit.contracts.stitch import ports_after
from compatkit.errors import CutError, IntegrityError, UsageError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.component import Component, pinned
from compatkit.evaluation.recombination import Estimate, Recombination
from compatkit.foundation.codec import unstructure
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store, add_component_note
from compatkit.registry.versions.diff import differing_paths
from compatkit.registry.weights.tensorchecks import NOT_PUBLISHED, check_values
from compatkit.registry.weights.tensorfile import state_digest

if TYPE_CHECKING:
    from torch import Tensor

KINDS = {EXTRACTOR: EXTRACTORS, ADAPTER: ("adapter",), HEAD: HEADS}
"""Allowed kinds of a part by relation."""
NOT_STORED = Edge(f"sha256:{'0' * 64}", 0)
"""Placeholder for a payload that is not stored yet."""
SHOWN = 3
"""Maximum number of tensor names listed in a message."""


class WithdrawnWarning(UserWarning):
    """A part of a recombination has been withdrawn; it is still loaded by digest."""


def publish_recombination(
    store: Store,
    name: str,
    recombination: Recombination,
    *,
    version: str | None = None,
    about: About | None = None,
    training: Mapping[str, Any] | None = None,
) -> Reference:
    """Publish a recombination, see ``Registry.publish``; ``training`` is recorded, too, as JSON values."""
    check_name(name)
    manifest, again = recompose(store, name, recombination, about)
    payload = store.put_state(own_state(again), parameters=manifest.payload.parameters)
    recorded = {**manifest.training, **(training or {})}
    manifest = attrs.evolve(manifest, payload=payload, training=recorded)
    reference = store.publish(name, manifest, version=version)
    remember_proof(store, manifest, reference.digest, _builders(again))
    return reference


def recompose(
    store: Store, owner: str, recombination: Recombination, about: About | None = None
) -> tuple[Manifest, Recombination]:
    """Compose a recombination again and return it with its manifest, whose payload is not stored yet.

    Args:
        store: Registry of its parts.
        owner: Name for messages.
        recombination: Result of ``recombine``.
        about: Title, description, tags, license and source.

    Raises:
        IntegrityError: A part is not in this registry, the module was changed since it was composed, or its
            statistics are not finite.
    """
    composition, own = Composition.of(recombination), own_state(recombination)
    check_values(own, owner, NOT_PUBLISHED)
    adapters = recombination.contract.adapters
    recomposed = compose(store, owner, composition, adapters, own, recombination.estimated)
    _check_unchanged(owner, recombination, recomposed)
    manifest = _manifest(recomposed, composition, own, about or About())
    verify_contract(manifest, recomposed, thorough=False, owner=owner)
    return manifest, recomposed


def load_recombination(
    store: Store, resolved: Reference, *, verify: Verify = "auto", require_signature: Trust = False
) -> Recombination:
    """Load a published recombination; see ``Registry.load``."""
    check_signature(store, resolved, require_signature, verify)
    check_version(store, resolved, verify)
    manifest, owner = store.manifest(resolved), pinned(resolved)
    composition = Composition.read(manifest, owner)
    with add_component_note(owner):
        state = store.load_state(manifest, verify=verify)
    estimated = manifest.training.get("statistics", {})
    adapters = manifest.contract.adapters
    recombination = compose(store, owner, composition, adapters, state, estimated, verify)
    _check_stated(owner, manifest, recombination, composition)
    verify_once(
        store,
        manifest,
        resolved.digest,
        recombination,
        verify=verify,
        owner=owner,
        builders=_builders(recombination),
    )
    return recombination


def own_state(recombination: Recombination) -> dict[str, Tensor]:
    """Return the tensors that the parts lack: estimated statistics, and weights of adapters not published.

    Returns:
        Tensors on the CPU by name.
    """
    state = recombination.statistics if estimates(recombination.bn_policy) else {}
    for index, adapter in enumerate(recombination.inserted):
        if adapter.digest is None:
            state |= {
                f"adapters.{index}.{name}": value for name, value in adapter.module.state_dict().items()
            }
    return {name: value.detach().to("cpu") for name, value in state.items()}


def _manifest(
    recombination: Recombination, composition: Composition, own: dict[str, Tensor], about: About
) -> Manifest:
    left, right = (part.manifest for part in recombination.sources)
    blueprint = composition.blueprint(left.blueprint, right.blueprint)
    probe = probe_of(recombination, recombination.contract.structural, blueprint)
    statistical = attrs.evolve(recombination.contract.statistical, probe=probe)
    title = " + ".join(dict.fromkeys(filter(None, (left.about.title, right.about.title))))
    parameters = sum(part.numel() for part in recombination.parameters())
    training: dict[str, Any] = {}
    if any(composition.origins):
        training["adapters"] = [None if part is None else unstructure(part) for part in composition.origins]
    if recombination.estimated:
        training["statistics"] = recombination.estimated
    return Manifest(
        kind="recombination",
        about=attrs.evolve(about, title=about.title or title),
        blueprint=blueprint,
        payload=Payload(NOT_STORED, state_digest(own), len(own), parameters),
        contract=attrs.evolve(recombination.contract, statistical=statistical),
        training=training,
        parents=tuple(Parent(part.relation, part.digest) for part in composition.pins),
    )


def _builders(recombination: Recombination) -> tuple[str, ...]:
    return tuple(source.manifest.blueprint.builder for source in recombination.sources)


def _check_unchanged(name: str, recombination: Recombination, recomposed: Recombination) -> None:
    """Raise for a recombination that was trained or changed since it was composed."""
    mine, theirs = recombination.state_dict(), recomposed.state_dict()
    other = sorted(mine.keys() ^ theirs.keys()) or [
        key for key, value in mine.items() if not _same(value.detach().to("cpu"), theirs[key])
    ]
    if other:
        raise IntegrityError(
            f"{name}: tensors of this recombination were changed after it was composed: {', '.join(other[:SHOWN])}"
            f"{' and others' if len(other) > SHOWN else ''}. Publish the changed part as a component, and recombine "
            "with that.",
            subject=other,
        )


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are bitwise equal."""
    if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
        return False
    return torch.equal(*(operand.contiguous().reshape(-1).view(torch.uint8) for operand in (tensor, other)))


def _check_stated(
    owner: str, manifest: Manifest, recombination: Recombination, composition: Composition
) -> None:
    """Raise if the manifest of a recombination contradicts the manifests of its parts."""
    left, right = (source.manifest.blueprint for source in recombination.sources)
    derived: dict[str, Any] = {
        "contract": attrs.evolve(recombination.contract, statistical=manifest.contract.statistical),
        "blueprint": attrs.evolve(composition.blueprint(left, right), library=manifest.blueprint.library),
    }
    wrong = [
        difference
        for field, value in derived.items()
        for difference in differing_paths(getattr(manifest, field), value, (field,))
    ]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise IntegrityError(
            f"{owner} contradicts its parts: {', '.join(wrong[:SHOWN])}{more}. Recombine the parts and publish the "
            "result.",
            subject=wrong,
        )


def compose(
    store: Store,
    owner: str,
    composition: Composition,
    blueprints: Sequence[Blueprint],
    state: Mapping[str, Tensor],
    estimated: Mapping[str, Any],
    verify: Verify = "auto",
) -> Recombination:
    """Compose a recombination from its parts, each found by digest and compared with its pin.

    Args:
        store: Registry of the parts.
        owner: Name for messages and warnings.
        composition: The composition.
        blueprints: Blueprints of all adapters, in order.
        state: Exactly the tensors that the parts lack.
        estimated: Record of the estimated statistics.
        verify: As for loading any component.

    Raises:
        IntegrityError: A part is missing, damaged, or of another kind or function than pinned, or the tensors are
            not exactly those that the parts lack.
        IncompatibleError: The parts cannot be wired; carries the report.
    """
    left, *between, right = (_part(store, owner, pin, verify) for pin in composition.pins)
    report, policy = _report(store, left, right, composition.policy), composition.policy
    try:
        pinned_adapters = dict(zip(composition.pinned, between, strict=True))
        adapters, taken = _adapters(left, blueprints, pinned_adapters, composition.origins, state)
        statistics = {name: tensor for name, tensor in state.items() if name not in taken}
        estimate = Estimate(statistics, estimated) if estimates(policy) else None
        if statistics and estimate is None:
            raise UsageError(f"unexpected tensors {', '.join(sorted(statistics)[:SHOWN])}.")
        return Recombination.of(left, right, report, bn_policy=policy, statistics=estimate, adapters=adapters)
    except (CutError, UsageError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise IntegrityError(f"{owner} cannot be composed: {error}", subject=owner) from error


def _part(store: Store, owner: str, pin: Pin, verify: Verify) -> Component:
    """Load a part by digest; raise if it is missing, damaged, or of another kind or function than pinned."""
    reference = _reference(store, owner, pin)
    try:
        component = PartLoader(store).component(reference)
        wrong = ""
        if component.kind not in KINDS[pin.relation]:
            wrong = f"of kind {component.kind}; expected {' or '.join(KINDS[pin.relation])}"
        elif component.function != pin.function:
            wrong = f"the function {component.function}; expected {pin.function}"
        if not wrong:
            # admitted: a signature of the recombination covers its parts
            return load(store, reference, verify=verify, admitted=True)
    except IntegrityError as error:
        error.add_note(
            f"This is the {pin.relation} {pinned(reference)} of {owner}. A recombination needs all of its parts: "
            "import it again from a registry that has them."
        )
        raise
    raise IntegrityError(f"{owner}: its {pin.relation} {component.reference} is {wrong}.", subject=pin.digest)


def _reference(store: Store, owner: str, pin: Pin) -> Reference:
    """Return a part's latest name and version here if it has one; warn if it is withdrawn."""
    matches = store.index.search(digest=pin.digest, withdrawn=True)
    alive = [version for version in matches if not version.withdrawn]
    if not matches:
        return Reference(owner.partition("@")[0], digest=pin.digest)
    chosen = (alive or matches)[-1]
    if not alive:
        tombstone = store.tombstone(chosen.name, chosen.version)
        why = f": {tombstone.reason}" if tombstone is not None else ""
        warnings.warn(
            f"{owner}: its {pin.relation} {chosen} was withdrawn{why}. It is still loaded by digest; consider "
            "a recombination without it.",
            WithdrawnWarning,
            stacklevel=6,
        )
    return Reference(chosen.name, Version.parse(chosen.version), digest=pin.digest)


def _report(store: Store, left: Component, right: Component, bn_policy: str) -> Report:
    """Return the present check of the two; without evidence if one has no name here."""
    if left.resolved.version is not None and right.resolved.version is not None:
        return check_pair(store, left, right, bn_policy=bn_policy)
    report = check(left.manifest, right.manifest, own=right.is_own(left))
    return attrs.evolve(report, extractor=left.reference, head=right.reference)


def _adapters(
    extractor: Component,
    blueprints: Sequence[Blueprint],
    pinned_adapters: Mapping[int, Component],
    origins: Sequence[AdapterOrigin | None],
    state: Mapping[str, Tensor],
) -> tuple[list[Adapter], set[str]]:
    """Return the adapters, and the names of the tensors of those that are not components."""
    ports = extractor.manifest.contract.structural.outputs
    data = attrs.evolve(extractor.manifest.contract.data, labels=None)
    adapters: list[Adapter] = []
    taken: set[str] = set()
    for index, blueprint in enumerate(blueprints):
        gives = ports_after(ports, blueprint)
        if index in pinned_adapters:
            adapters.append(adapter_of(pinned_adapters[index]))
            if adapters[-1].blueprint != blueprint:
                raise UsageError(f"its contract states another adapter than {adapters[-1].reference}.")
        else:
            prefix, known = f"adapters.{index}.", origins[index] or AdapterOrigin()
            own = {name[len(prefix) :]: tensor for name, tensor in state.items() if name.startswith(prefix)}
            taken |= {prefix + name for name in own}
            module = build_adapter(blueprint, own)
            adapters.append(Adapter(blueprint, module, ports, gives, data, known.parents, known.training))
        ports = gives
    return adapters, taken
