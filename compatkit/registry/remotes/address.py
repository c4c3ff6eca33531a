"""Addresses of remotes: a folder, or a URL that a plugin opens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatkit.errors import UsageError
from compatkit.foundation.addresses import is_url, normalized, not_an_address
from compatkit.foundation.credentials import redacted
from compatkit.registry.opening import AnyRegistry, open_store_of
from compatkit.registry.remotes import named
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.located import Located, Packages, open_address


def locate(remote: AnyRegistry | Located, options: Mapping[str, Any] | None = None) -> Located:
    """Return the folder or remote at an address; nothing is read yet.

    A URL is opened by the plugin ``remotes.<scheme>``, or by ``remotes.fsspec`` if that is missing.

    Args:
        remote: Path, ``file://...``, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, ...; ``NAME:`` of a saved
            remote; a ``Registry`` or ``Store``; or an earlier result.
        options: Keyword arguments for the plugin, such as ``{"endpoint_url": ...}``; added to those of a saved remote.

    Raises:
        UsageError: ``remote`` is none of these, an object that requires signatures, or an address whose scheme no
            plugin has; or an option is unknown.
        MissingDependency: A required library is not installed.
        UnknownName: No remote of this name is saved.
        PluginError: The plugin cannot be used, or fails.
    """
    if isinstance(remote, Files | Packages):
        return remote
    if (saved := named.find(remote)) is not None:
        return locate(saved.address, {**saved.options, **(options or {})})
    if (store := open_store_of(remote)) is not None:
        if store.trusted is not None:
            raise UsageError(
                f"A copy does not apply the keys that the registry object of {store.root} requires. Name its folder, "
                "and pass require_signature= to the call that pulls.",
                subject=store.root,
            )
        return store.root
    if not isinstance(remote, str | os.PathLike) or not os.fsdecode(remote).strip():
        raise not_an_address(remote, "Expected a folder, an address such as s3://bucket/parts or a Registry")
    address = normalized(remote)
    if is_url(address):
        return open_address(address, options)
    if options:
        raise UsageError(f"{address} is a folder, which takes no options ({', '.join(options)}).")
    return Path(address).expanduser().absolute()


def parse_options(words: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``key=value`` words; a value is JSON if possible, else text.

    Raises:
        UsageError: A word is malformed.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key.isidentifier():
            shown = f"the key {redacted(key)!r:.40}" if mark else "a word without ="  # perhaps a secret
            raise UsageError(
                f"Expected an option key=value, such as endpoint_url=http://127.0.0.1:9000, got {shown}."
            )
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options
