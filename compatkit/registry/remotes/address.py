"""Addresses of remotes: a folder, or a URL that a plugin opens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatkit.errors import CompatkitError, PluginError, UnknownName, UsageError, type_of
from compatkit.foundation.addresses import is_url, normalized, shown
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.objectstore import ObjectStore
from compatkit.registry.remotes.packages import PackageStore
from compatkit.registry.remotes.packaging import Packages

FALLBACK = "fsspec"
"""The plugin for every scheme that none is named after."""


Located = Path | Files | Packages
"""A folder, or what a plugin opened."""


def locate(remote: str | os.PathLike[str] | Located, options: Mapping[str, Any] | None = None) -> Located:
    """Return what a remote's address means; nothing is read yet.

    A URL is opened by the plugin ``remotes.<scheme>``, or by ``remotes.fsspec`` where there is none.

    Args:
        remote: A path, ``file://...``, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, ...; or an earlier result.
        options: Keyword arguments for the plugin, such as ``{"endpoint_url": ...}``.

    Raises:
        UsageError: Neither a path nor an address, no plugin for its scheme, or options that it does not take.
        MissingDependency: The library for it is not installed.
        PluginError: The plugin cannot be used, or fails.
    """
    if isinstance(remote, Files | Packages):
        return remote
    if not isinstance(remote, str | os.PathLike) or not os.fsdecode(remote).strip():
        raise UsageError(
            f"a remote is a folder or an address such as s3://bucket/parts, got {remote!r:.100}."
        )
    address = normalized(remote)
    if is_url(address):
        return open_address(address, options)
    if options:
        raise UsageError(f"{address} is a folder, which takes no options ({', '.join(options)}).")
    return Path(address).expanduser().absolute()


def options_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Read ``key=value`` words; a value may be JSON, else it is text.

    Raises:
        UsageError: A word is not written so.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key.isidentifier():
            raise UsageError(
                f"an option is written key=value, such as endpoint_url=http://127.0.0.1:9000, got {key!r:.40}."
            )
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def open_address(address: str, options: Mapping[str, Any] | None = None) -> Located:
    """Return what the plugin for the scheme of an address opens; a ``-`` of the scheme is ``_`` in its name.

    Args:
        address: With a scheme in lower case.
        options: Keyword arguments for the plugin.

    Raises:
        UsageError: No plugin for the scheme, or the plugin refuses address or options.
        PluginError: The plugin cannot be used, or fails.
    """
    from compatkit.plugins.discovery import find, names

    url = shown(address)
    try:
        offer = find("remotes", address.partition("://")[0].replace("-", "_"))
    except UnknownName:
        offer = find("remotes", FALLBACK)
    try:
        remote = offer.factory(address, **(options or {}))
    except (UsageError, TypeError, ValueError) as error:
        if isinstance(error, PluginError):
            raise
        raise UsageError(
            f"{url}: {str(error).rstrip('.')}. Look at the address and the options. Installed remotes: "
            f"{', '.join(names('remotes'))}.",
            subject=url,
        ) from error
    except CompatkitError:
        raise
    except Exception as error:
        raise offer.owner.error(f"could not open {url}: {type(error).__name__}: {error}") from error
    if isinstance(remote, Path):
        return remote.absolute()
    if isinstance(remote, PackageStore):
        return Packages(remote, url)
    if not isinstance(remote, ObjectStore):
        raise offer.owner.error(
            f"opening {url} gave {type_of(remote)}; return an ObjectStore, a PackageStore or a Path."
        )
    return Files(remote, url)
