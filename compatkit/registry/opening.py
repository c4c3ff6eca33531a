"""Open the registry that an argument names: its folder, or an object that has it open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from compatkit.errors import UsageError
from compatkit.foundation.addresses import local
from compatkit.registry.store import Store


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


def opened(registry: AnyRegistry, argument: str) -> Store:
    """Return the store of a registry.

    Args:
        registry: Folder of the registry, a ``Registry`` or a ``Store``; an open one keeps the keys that it trusts.
        argument: Name of the argument, for messages.

    Raises:
        UsageError: It is none of these, or the address of a remote.
        LayoutError: The folder is not a registry, or its layout is too new.
    """
    store = open_store_of(registry)
    return Store.open(root_of(registry, argument)) if store is None else store


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
