"""Extractors and heads that are numbers, published under a policy; which work together is a rule, not a measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from registry_parts import manifest_for, put

from compatkit.contracts.manifest import Parent
from compatkit.errors import PolicyBroken
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images, Policy
from compatkit.registry.required_partners import PolicyRequirement
from compatkit.registry.store import Store

E, H = "eye", "hand"
DATA = Images("images/test", "data:sha256:" + "a" * 64)
Clash = Callable[[int, int], bool]
"""Returns whether an extractor and a head do not work together."""


def value_of(store: Store, reference: str) -> int:
    """Return the number that a part is, by its reference or digest."""
    return int.from_bytes(store.read_blob(store.manifest(reference).payload.file.blob)[-4:], "little")


def publish_extractor(root: Path, value: int, clash: Clash) -> Reference:
    """Publish an extractor, as the policy allows."""
    store = Store.open(root)
    return store.publish(E, manifest_for(put(store, value)), policy_check=_deciding(store, value, clash))


def publish_head(root: Path, value: int, clash: Clash, name: str = H) -> Reference:
    """Publish a head that was trained with the first extractor, as the policy allows."""
    store = Store.open(root)
    parent = Parent("trained_with", str(store.references.digest(E, store.references.versions(E)[0])))
    made = manifest_for(put(store, value), kind="head", parents=(parent,))
    return store.publish(name, made, policy_check=_deciding(store, value, clash))


def bind(root: Path, mode: Any) -> object:
    """Set the policy of all names."""
    return Store.open(root).set_policy("*", Policy(scope="*", mode=mode, data=DATA))


def release(root: Path, extractor: int, head: int, mode: str | None) -> None:
    """Make a registry with one pair under a policy."""
    Store.init(root)
    publish_extractor(root, extractor, lambda left, right: False)
    publish_head(root, head, lambda left, right: False)
    if mode is not None:
        bind(root, mode)


def _deciding(store: Store, value: int, clash: Clash) -> Callable[[PolicyRequirement], None]:
    def decide(requirement: PolicyRequirement) -> None:
        for partner in requirement.partners:
            other = value_of(store, str(partner.reference.digest))
            pair = (value, other) if requirement.kind == "extractor" else (other, value)
            if clash(*pair):
                raise PolicyBroken(f"{pair} do not work", subject=requirement)

    return decide
