"""Check whether a load would accept a component, without reading its weights; or load it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import attrs
import torch

from compatkit.adapters.builders import library_note
from compatkit.components.composition import Composition
from compatkit.components.loading import load, rebuilt
from compatkit.components.probes import load_fact, proof_of
from compatkit.components.verification import level_differences, verify_structure
from compatkit.contracts.contract import Blueprint, Statistical
from compatkit.contracts.manifest import About, Edge, Manifest
from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError, PluginError
from compatkit.evaluation.component import pinned
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry.maintenance.loads import LoadCheck, LoadRefusal, ReadHeader
from compatkit.registry.names import Reference
from compatkit.registry.store import Store
from compatkit.registry.weights.header import DTYPES, Header

RUN_BYTES = 2**28
"""Largest weights whose network is run to compare its ports; larger networks are built only."""
_NO_FILE = Edge(f"sha256:{'0' * 64}", 0)


def load_check(*, full: bool = False) -> LoadCheck:
    """Return the check of ``verify``.

    It builds each distinct network once, with zeros for weights, and compares tensor names, shapes and dtypes, counts,
    classes and images with the contract, and the ports with a forward pass of zeros. What depends on the values of the
    weights (the outputs of the probe, ranges, prefix tokens), and how the parts of a recombination fit, is checked with
    ``full`` only. Components that passed are remembered on this machine for the installed versions of the libraries.

    Args:
        full: Whether to load every component as ``Registry.load`` does.
    """
    check = LoadChecks()
    return check.load if full else check.examine


@attrs.define(eq=False)
class LoadChecks:
    """Checks of components; networks and contracts that are alike are checked once."""

    _results: dict[str, LoadRefusal | None] = attrs.field(factory=dict, init=False)

    def load(
        self, store: Store, reference: Reference, manifest: Manifest, header: ReadHeader
    ) -> LoadRefusal | None:
        """Load a component; return the reason if that fails."""
        from compatkit.components.recombinations import load_recombination

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (load_recombination if manifest.kind == "recombination" else load)(store, reference)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            parts = [manifest]
            if manifest.kind == "recombination":
                parts = [store.manifest(parent.component) for parent in manifest.parents]
            return LoadRefusal(str(error), _is_elsewhere((part.blueprint for part in parts), error))
        return None

    def examine(
        self, store: Store, reference: Reference, manifest: Manifest, header: ReadHeader
    ) -> LoadRefusal | None:
        """Check a component without its weights; return the reason for which a load refuses it."""
        owner = pinned(reference)
        if manifest.kind == "recombination" or manifest.blueprint.side == "recombination":
            return _recombination_refusal(manifest, owner)
        proofs = proof_of(manifest, str(reference.digest)), load_fact(manifest, str(reference.digest))
        if any(proof is not None and store.local_cache.is_proved(proof) for proof in proofs):
            return None
        read = header()
        key = _key(manifest, read)
        if key not in self._results:
            self._results[key] = _refusal(manifest, read)
        refusal = self._results[key]
        if refusal is None and proofs[1] is not None:
            store.local_cache.remember_proved(proofs[1])
        return refusal


def _recombination_refusal(manifest: Manifest, owner: str) -> LoadRefusal | None:
    try:
        Composition.read(manifest, owner)
    except CompatkitError as error:
        return LoadRefusal(str(error), False)
    differences = list(level_differences(manifest))
    return LoadRefusal(" ".join(differences), False) if differences else None


def _refusal(manifest: Manifest, header: Header | None) -> LoadRefusal | None:
    """Build the network with zeros and compare it with the contract."""
    owner = f"The {manifest.kind}"
    try:
        if header is None:
            raise IntegrityError(f"{owner} has no weights.", subject=owner)
        state = {
            tensor.name: torch.zeros(tensor.shape, dtype=getattr(torch, DTYPES[tensor.dtype][0]))
            for tensor in header.tensors
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = rebuilt(manifest.blueprint, state, owner, share=True)
            verify_structure(manifest, module, state=state, run=header.size <= RUN_BYTES, owner=owner)
    except CompatkitError as error:
        return LoadRefusal(str(error), _is_elsewhere([manifest.blueprint], error))
    return None


def _is_elsewhere(blueprints: Iterable[Blueprint], error: CompatkitError) -> bool:
    """Return whether the reason may be the libraries installed here: another version, or a builder that is missing."""
    if isinstance(error, PluginError):
        return True
    try:
        return any(blueprint.is_cut and library_note(blueprint) is not None for blueprint in blueprints)
    except CompatkitError:  # no such builder
        return True


def _key(manifest: Manifest, header: Header | None) -> str:
    """Return a key of all that the result depends on: versions of one network that only differ in weights share it."""
    contract = manifest.contract
    probe, protocol = contract.statistical.probe, attrs.evolve(contract.protocol, anchors=())
    bare = attrs.evolve(
        manifest,
        about=About(),
        training={},
        parents=tuple(attrs.evolve(parent, component=_NO_FILE.blob) for parent in manifest.parents),
        payload=attrs.evolve(manifest.payload, file=_NO_FILE, tensors=f"tensors:{_NO_FILE.blob}"),
        contract=attrs.evolve(contract, statistical=Statistical(), protocol=protocol),
    )
    tensors = [] if header is None else [(entry.name, entry.dtype, entry.shape) for entry in header.tensors]
    return digest_of(dumps([bare, tensors, None if probe is None else probe.shapes]))
