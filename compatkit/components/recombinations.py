"""Recombinations as components: pinned by the digests of their parts, proved when published, verified when loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch

from compatkit.components.composition import ADAPTER, EXTRACTOR, HEAD, Composition, Facts, Pin, composition
from compatkit.components.loading import check_signature, check_version, pinned
from compatkit.components.proofs import probe_of, proof_of, remember_proof
from compatkit.components.reassembly import SHOWN, Reassembly
from compatkit.components.verification import verify as hold_against
from compatkit.contracts.batchnorm import estimates
from compatkit.contracts.manifest import About, Edge, Manifest, Payload
from compatkit.errors import IntegrityError, UsageError
from compatkit.evaluation.recombination import Recombination
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference, check_name
from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store, named
from compatkit.registry.versions.diff import differing
from compatkit.registry.weights.tensorfile import check_finite, state_digest

if TYPE_CHECKING:
    from torch import Tensor

UNSTORED = Edge(f"sha256:{'0' * 64}", 0)
"""Stands for a payload that is not stored yet."""


def publish_recombination(
    store: Store,
    name: str,
    recombination: Recombination,
    *,
    version: str | None = None,
    about: About | None = None,
    training: Mapping[str, Any] | None = None,
) -> Reference:
    """Keep a recombination; see ``Registry.publish``; ``training`` is what else to record, as JSON."""
    check_name(name)
    manifest, again = drafted(store, name, recombination, about)
    payload = store.put_state(own_state(again), parameters=manifest.payload.parameters)
    recorded = {**manifest.training, **(training or {})}
    manifest = attrs.evolve(manifest, payload=payload, training=recorded)
    reference = store.publish(name, manifest, version=version)
    remember_proof(store, manifest, reference, _builders(again))
    return reference


def drafted(
    store: Store, whose: str, recombination: Recombination, about: About | None = None
) -> tuple[Manifest, Recombination]:
    """Put a recombination together anew and return it with its manifest, whose payload is not stored yet.

    Args:
        store: Holds its parts.
        whose: Named in messages.
        recombination: From ``recombine``.
        about: For people.

    Raises:
        IntegrityError: A part is not in this registry, the module was changed since it was put together, or its
            statistics are not finite.
    """
    made, own = _composition(recombination), own_state(recombination)
    check_finite(own, whose)
    adapters = recombination.contract.adapters
    again = Reassembly(store, whose, made).put_together(adapters, own, recombination.estimated)
    _check_unchanged(whose, recombination, again)
    manifest = _manifest(again, made, own, about or About())
    hold_against(manifest, again, thorough=False, whose=whose)
    return manifest, again


def load_recombination(
    store: Store, reference: str | Reference, *, verify: Verify = "auto", require_signature: Trust = False
) -> Recombination:
    """Load a published recombination; see ``Registry.load``."""
    resolved = store.resolve(reference)
    check_signature(store, resolved, require_signature, verify)
    check_version(store, resolved, verify)
    manifest, whose = store.manifest(resolved), pinned(resolved)
    if manifest.kind != "recombination":
        raise UsageError(
            f"{whose} is of kind {manifest.kind}, where a recombination is expected. Load it with build, or put it "
            "together with another part by recombine.",
            subject=whose,
        )
    made = composition(manifest, whose)
    with named(whose):
        state = store.load_state(manifest, verify=verify)
    estimated = manifest.training.get("statistics", {})
    found = Reassembly(store, whose, made, verify).put_together(manifest.contract.adapters, state, estimated)
    _check_stated(whose, manifest, found, made)
    fact = proof_of(manifest, str(resolved.digest), _builders(found))
    run = verify == "always" or (verify == "auto" and not (fact and store.memory.is_proved(fact)))
    hold_against(manifest, found, thorough=False, run=run, whose=whose)
    if run and fact is not None:
        store.memory.prove(fact)
    return found


def own_state(recombination: Recombination) -> dict[str, Tensor]:
    """Return what the parts lack: estimated statistics, and weights of adapters that are no components."""
    state = recombination.statistics if estimates(recombination.normalisation) else {}
    for place, one in enumerate(recombination.inserted):
        if one.digest is None:
            state |= {f"adapters.{place}.{name}": value for name, value in one.module.state_dict().items()}
    return {name: value.detach().to("cpu") for name, value in state.items()}


def _composition(recombination: Recombination) -> Composition:
    left, right = recombination.sources
    adapters = recombination.inserted
    return Composition(
        recombination.normalisation,
        Pin(EXTRACTOR, left.digest, left.function),
        Pin(HEAD, right.digest, right.function),
        {
            place: Pin(ADAPTER, one.digest, one.function)
            for place, one in enumerate(adapters)
            if one.digest is not None
        },
        tuple(Facts(one.parents, one.training) if one.digest is None else None for one in adapters),
    )


def _manifest(made: Recombination, of: Composition, own: dict[str, Tensor], about: About) -> Manifest:
    left, right = made.sources
    blueprint = of.blueprint(left.blueprint, right.blueprint)
    probe = probe_of(made, made.contract.structural, blueprint)
    statistical = attrs.evolve(made.contract.statistical, probe=probe)
    title = " + ".join(dict.fromkeys(filter(None, (left.title, right.title))))
    parameters = sum(one.numel() for one in made.parameters())
    return Manifest(
        kind="recombination",
        about=attrs.evolve(about, title=about.title or title),
        blueprint=blueprint,
        payload=Payload(UNSTORED, state_digest(own), len(own), parameters),
        contract=attrs.evolve(made.contract, statistical=statistical),
        training=of.training | ({"statistics": made.estimated} if made.estimated else {}),
        parents=of.parents,
    )


def _builders(made: Recombination) -> tuple[str, ...]:
    return tuple(one.blueprint.builder for one in made.sources)


def _check_unchanged(name: str, given: Recombination, again: Recombination) -> None:
    """Refuse a recombination that is not what its parts make, because it was trained or changed since.

    Raises:
        IntegrityError: Names tensors that differ.
    """
    mine, theirs = given.state_dict(), again.state_dict()
    other = sorted(mine.keys() ^ theirs.keys()) or [
        key for key, value in mine.items() if not _same(value.detach().to("cpu"), theirs[key])
    ]
    if other:
        raise IntegrityError(
            f"{name}: this recombination is not what its parts in this registry make: {', '.join(other[:SHOWN])} "
            f"{'differ' if len(other) > 1 else 'differs'}{' and others' if len(other) > SHOWN else ''}. It was changed "
            "since it was put together; publish the changed part as a component of its own, and recombine with that.",
            subject=other,
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are equal bit by bit."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))


def _check_stated(whose: str, manifest: Manifest, found: Recombination, made: Composition) -> None:
    """Compare what a recombination states of itself with what follows from its parts.

    Raises:
        IntegrityError: Says where they differ.
    """
    left, right = found.sources
    follows: dict[str, Any] = {
        "contract": attrs.evolve(found.contract, statistical=manifest.contract.statistical),
        "blueprint": attrs.evolve(
            made.blueprint(left.blueprint, right.blueprint), library=manifest.blueprint.library
        ),
    }
    wrong = [
        place
        for field, value in follows.items()
        for place in differing(getattr(manifest, field), value, (field,))
    ]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise IntegrityError(
            f"{whose} does not state what follows from its parts: {', '.join(wrong[:SHOWN])}{more}. Put it together "
            "and publish it anew.",
            subject=wrong,
        )
