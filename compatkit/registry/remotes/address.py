"""Addresses of remotes: a folder, or a URL that a plugin opens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatkit.errors import CompatkitError, PluginError, UnknownName, UsageError, type_of
from compatkit.foundation.addresses import is_url, normalized, shown
from compatkit.foundation.credentials import redacted, remember, safe_cause
from compatkit.registry.opening import AnyRegistry, open_store_of
from compatkit.registry.remotes import failures, named
from compatkit.registry.remotes.files import Files, convert_errors
from compatkit.registry.remotes.objectstore import ObjectStore
from compatkit.registry.remotes.packages import PackageStore
from compatkit.registry.remotes.packaging import Packages

FALLBACK = "fsspec"
"""Plugin for schemes without a plugin of their own."""


Located = Path | Files | Packages
"""A folder, or a remote that a plugin opened."""


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
        raise UsageError(
            "Expected a folder, an address such as s3://bucket/parts or a Registry, got "
            f"{redacted(repr(remote)):.100}.",
        )
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
            given = f"the key {redacted(key)!r:.40}" if mark else "a word without ="  # perhaps a secret
            raise UsageError(
                f"Expected an option key=value, such as endpoint_url=http://127.0.0.1:9000, got {given}."
            )
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def open_address(address: str, options: Mapping[str, Any] | None = None) -> Located:
    """Open an address with the plugin for its scheme; a ``-`` in the scheme is ``_`` in the plugin's name.

    Args:
        address: Address with a scheme in lower case.
        options: Keyword arguments for the plugin.

    Raises:
        UsageError: No plugin has the scheme, or the plugin refuses address or options.
        PluginError: The plugin cannot be used, or fails.
    """
    from compatkit.plugins.discovery import find, names

    remember(address, options)
    url = shown(address)
    try:
        offer = find("remotes", address.partition("://")[0].replace("-", "_"))
    except UnknownName:
        offer = find("remotes", FALLBACK)
    try:
        remote = offer.factory(address, **(options or {}))
    except Exception as error:
        if isinstance(error, PluginError) or (
            isinstance(error, CompatkitError) and not isinstance(error, UsageError)
        ):
            raise
        if isinstance(error, UsageError) or (
            isinstance(error, TypeError | ValueError) and not isinstance(error, OSError)
        ):
            raise UsageError(
                f"{url}: {str(error).rstrip('.')}. Check the address and the options. Installed remotes: "
                f"{', '.join(names('remotes'))}.",
                subject=url,
            ) from safe_cause(error)
        if failures.is_environmental(error):
            with convert_errors(url, "open", ""):
                raise
        raise offer.owner.error(f"could not open {url}: {type(error).__name__}: {error}") from safe_cause(
            error
        )
    if isinstance(remote, Path):
        return remote.absolute()
    if isinstance(remote, PackageStore):
        return Packages(remote, url)
    if not isinstance(remote, ObjectStore):
        raise offer.owner.error(
            f"expected an ObjectStore, a PackageStore or a Path for {url}, got {type_of(remote)}."
        )
    if type(remote.parallel) is not int or remote.parallel < 1:
        raise offer.owner.error(f"expected parallel of {url} to be 1 or more, got {remote.parallel!r:.40}.")
    return Files(remote, url)
