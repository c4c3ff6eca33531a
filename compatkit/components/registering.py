"""Publish one component after checking its policy, or one from a manifest after verifying its contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.images import PolicyData
from compatkit.components.loading import rebuilt, with_module
from compatkit.components.policy_checks import CANDIDATE, PolicyChecker
from compatkit.components.probes import probe_of, remember_proof
from compatkit.components.verification import verify_contract
from compatkit.contracts.channels import channel_statistics
from compatkit.contracts.manifest import Manifest, to_bytes, trained_with
from compatkit.evaluation.conditions import Progress
from compatkit.foundation.codec import digest
from compatkit.registry.names import Reference
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorchecks import NOT_PUBLISHED, check_values

if TYPE_CHECKING:
    from torch import Tensor, nn


def publish_proved(
    store: Store,
    name: str,
    manifest: Manifest,
    module: nn.Module,
    *,
    version: str | None = None,
    major: bool = False,
    data: PolicyData = (),
    progress: Progress | None = None,
) -> Reference:
    """Publish a component whose module has passed its probe, after checking the policy of its name.

    Args:
        store: Registry to publish to; it must hold the component's blobs.
        name: One to three segments.
        manifest: Manifest of the component.
        module: Module with its weights, in eval mode.
        version: Version number; None for the smallest step.
        major: Use the next MAJOR number, which policies do not bind.
        data: Available images.
        progress: Called with done, total and what is being done while a policy is measured.

    Raises:
        PolicyBroken: The component does not work with a released partner; carries the outcome.
        PolicyDataMissing: The policy's images are not available.
        VersionExists: The version belongs to another manifest.
        VersionTooSmall: The change requires a larger step.
    """
    reference = Reference(name, digest=digest(to_bytes(manifest)))
    candidate = with_module(store, reference, manifest, module, reference=f"{name}@{CANDIDATE}")
    checker = PolicyChecker(store, candidate, data, version=version, progress=progress)
    reference = store.publish(name, manifest, version=version, major=major, policy_check=checker)
    remember_proof(store, manifest, reference.digest)
    return reference


def register(
    store: Store, name: str, manifest: Manifest, state: Mapping[str, Tensor], **settings: Any
) -> Reference:
    """Publish a component after checking its contract against its module; see ``Registry.publish``.

    Args:
        store: Registry to publish to.
        name: One to three segments.
        manifest: Manifest of the component; its payload is replaced.
        state: Weights by name.
        settings: Further arguments of ``publish_proved``.
    """
    to_bytes(manifest)  # reject invalid values before anything is built
    module = rebuilt(manifest.blueprint, state, name)
    check_values(state, name, NOT_PUBLISHED, module.state_dict())
    parameters = sum(item.numel() for item in module.parameters())
    payload = attrs.evolve(manifest.payload, count=len(state), parameters=parameters)
    contract = manifest.contract
    if contract.statistical.probe is None:
        probe = probe_of(module, contract.structural, manifest.blueprint)
        contract = attrs.evolve(contract, statistical=attrs.evolve(contract.statistical, probe=probe))
    manifest = attrs.evolve(manifest, payload=payload, contract=contract)
    trained = [store.manifest(item) for item in trained_with(manifest)]
    verify_contract(
        manifest, module, thorough=True, state=state, owner=name, trained_with=trained[0] if trained else None
    )
    for item in contract.statistical.features or ():
        if item.per_channel is not None:
            channel_statistics(store.read_blob(item.per_channel["blob"]))
    stored = attrs.evolve(manifest, payload=store.put_state(state, parameters=parameters))
    return publish_proved(store, name, stored, module, **settings)
