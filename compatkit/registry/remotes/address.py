"""Addresses of remotes: a folder, or a URL that fsspec reaches."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatkit.errors import MissingDependency, UsageError
from compatkit.foundation.addresses import is_url, normalized, shown
from compatkit.registry.remotes.files import Files

ATOMIC = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory", "hf", "http", "https"}
)
"""Protocols of stores in which a file appears with its whole content or not at all."""
OTHERS = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
"""Libraries of protocols that are not tested here, so that no extra installs them."""
LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "hf": "huggingface_hub", **OTHERS}


def locate(remote: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Path | Files:
    """Return the folder or the files that a remote's address means; nothing is read yet.

    Args:
        remote: A path, ``file://...``, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, ...
        options: Of the fsspec file system, such as ``{"endpoint_url": ...}``; else the back end's own environment
            variables and files count.

    Raises:
        UsageError: Neither a path nor an address, no such protocol, or options that it does not take.
        MissingDependency: The library for it is not installed.
    """
    if not isinstance(remote, str | os.PathLike) or not os.fsdecode(remote).strip():
        raise UsageError(
            f"a remote is a folder or an address such as s3://bucket/parts, got {remote!r:.100}."
        )
    address = normalized(remote)
    if is_url(address):
        return _files(address.partition("://")[0], address, dict(options or {}))
    if options:
        raise UsageError(f"{address} is a folder, which takes no options ({', '.join(options)}).")
    return Path(address).expanduser().absolute()


def options_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Read ``key=value`` words; a value may be JSON, else it is text.

    Raises:
        UsageError: A word is not written so.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key.isidentifier():
            raise UsageError(
                f"an option is written key=value, such as endpoint_url=http://127.0.0.1:9000, got {key!r:.40}."
            )
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _files(protocol: str, remote: str, options: dict[str, Any]) -> Files:
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise UsageError(
            f"{shown(remote)}: fsspec knows no protocol {protocol!r}. A remote is a folder, s3://bucket/prefix, "
            "hf://datasets/USER/NAME or another address that fsspec reaches.",
            subject=shown(remote),
        ) from None
    except ImportError as error:
        package = LIBRARIES.get(protocol, "a library")
        said = f"pip install {OTHERS[protocol]}" if protocol in OTHERS else "pip install 'compatkit[remotes]'"
        raise MissingDependency(
            f"{shown(remote)} is reached through fsspec and {package}, one of which is not installed. Run: {said} "
            f"({error})",
            subject=package,
        ) from error
    options.setdefault("use_listings_cache", False)
    if protocol == "hf":
        from compatkit.registry.remotes.hub import hub

        return hub(kind, remote, shown(remote), options)
    try:
        system = kind(skip_instance_cache=True, **{**kind._get_kwargs_from_urls(remote), **options})
        root = str(kind._strip_protocol(remote)).rstrip("/")
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{shown(remote)}: {error}. Look at the address and the options.", subject=shown(remote)
        ) from None
    return Files(system, root, shown(remote), protocol in ATOMIC)
