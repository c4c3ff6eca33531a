"""Open the registry that an argument names: its folder, or an object that has it open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from compatkit.errors import UsageError
from compatkit.foundation.addresses import is_remote, local
from compatkit.registry.layout import VARIABLE, locate
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.signing.trust import Trusted


class HasStore(Protocol):
    """An object with an open store: a ``Registry``."""

    @property
    def store(self) -> Store:
        """The open store."""
        ...


AnyRegistry = str | os.PathLike[str] | Store | HasStore
"""What names a registry in an argument."""


def open_store_of(value: object) -> Store | None:
    """Return the store of a ``Registry`` or ``Store``; None for any other object."""
    store = getattr(value, "store", value)
    return store if isinstance(store, Store) else None


def open_store(
    root: str | os.PathLike[str] | None, trusted: Trusted | None = None, key: SigningKey | None = None
) -> Store:
    """Open a registry in a folder, or a remote for reading.

    Args:
        root: Folder, address or ``NAME:`` of a remote; None for COMPATKIT_REGISTRY, else the nearest folder above.
        trusted: Keys that must have signed each loaded component; None requires no signature.
        key: Key that signs changes, or None.

    Raises:
        LayoutError: There is no registry, or its layout is not supported.
        EnvironmentFailure: The remote cannot be reached.
    """
    where = os.environ.get(VARIABLE) or None if root is None else root
    if isinstance(where, str) and is_remote(where):
        from compatkit.registry.remotes.reading import open_remote

        return open_remote(where, trusted, key)
    return Store.open(locate(None) if root is None else root, trusted, key)


def opened(registry: AnyRegistry, argument: str) -> Store:
    """Return the store of a registry.

    Args:
        registry: Folder of the registry, address of a remote that is only read, a ``Registry`` or a ``Store``; an
            open one keeps the keys that it trusts.
        argument: Name of the argument, for messages.

    Raises:
        UsageError: It is none of these.
        LayoutError: The folder is not a registry, or its layout is too new.
    """
    store = open_store_of(registry)
    if store is not None:
        return store
    return open_store(registry if isinstance(registry, str) else root_of(registry, argument))


def root_of(registry: AnyRegistry, argument: str) -> Path:
    """Return the absolute path of a registry's folder, which may not exist yet.

    Args:
        registry: As for ``opened``.
        argument: Name of the argument, for messages.

    Raises:
        UsageError: It is none of these, or the address of a remote.
    """
    if (store := open_store_of(registry)) is not None:
        return store.root
    if isinstance(registry, str | os.PathLike):
        return Path(local(registry, "a registry")).absolute()
    raise UsageError(
        f"{argument} expects the folder of a registry, a Registry or a Store; got {registry!r:.80}.",
        subject=registry,
    )
