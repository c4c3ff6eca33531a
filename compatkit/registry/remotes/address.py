"""Addresses of remotes: a folder, or a URL that a plugin opens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatkit.errors import CompatkitError, PluginError, UsageError, type_of
from compatkit.foundation.addresses import is_url, normalized, shown
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.objectstore import ObjectStore

FALLBACK = "fsspec"
"""The plugin for every scheme that none is named after."""


def locate(remote: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Path | Files:
    """Return the folder or the files at a remote's address; nothing is read yet.

    A URL is opened by the plugin ``remotes.<scheme>``, or by ``remotes.fsspec`` where there is none.

    Args:
        remote: A path, ``file://...``, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, ...
        options: Keyword arguments for the plugin, such as ``{"endpoint_url": ...}``.

    Raises:
        UsageError: Neither a path nor an address, no plugin for its scheme, or options that it does not take.
        MissingDependency: The library for it is not installed.
        PluginError: The plugin cannot be used, or fails.
    """
    if not isinstance(remote, str | os.PathLike) or not os.fsdecode(remote).strip():
        raise UsageError(
            f"a remote is a folder or an address such as s3://bucket/parts, got {remote!r:.100}."
        )
    address = normalized(remote)
    if is_url(address):
        return _opened(address, dict(options or {}))
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


def _opened(address: str, options: dict[str, Any]) -> Path | Files:
    """Return what the plugin for an address opens."""
    from compatkit.plugins.discovery import find, names

    url, scheme, installed = shown(address), address.partition("://")[0], names("remotes")
    if scheme not in installed and FALLBACK not in installed:
        raise UsageError(
            f"{url}: no plugin opens {scheme}://. Installed remotes: {', '.join(installed) or 'none'}. A remote is "
            "also a folder.",
            subject=url,
        )
    offer = find("remotes", scheme if scheme in installed else FALLBACK)
    try:
        opened = offer.factory(address, **options)
    except (UsageError, TypeError, ValueError) as error:
        if isinstance(error, PluginError):
            raise
        raise UsageError(
            f"{url}: {str(error).rstrip('.')}. Look at the address and the options. Installed remotes: "
            f"{', '.join(installed)}.",
            subject=url,
        ) from error
    except CompatkitError:
        raise
    except Exception as error:
        raise offer.owner.error(f"could not open {url}: {type(error).__name__}: {error}") from error
    if isinstance(opened, Path):
        return opened.absolute()
    if not isinstance(opened, ObjectStore):
        raise offer.owner.error(
            f"opening {url} gave {type_of(opened)}; return an ObjectStore, or the Path of a folder."
        )
    return Files(opened, url)
