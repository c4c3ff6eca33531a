"""Remotes through fsspec: S3 and every other protocol that no plugin of its own offers."""

from __future__ import annotations

from typing import Any

from compatkit import hookimpl
from compatkit.hooks import Register

from ._filesystem import FileSystemStore, filesystem_class

compatkit_api = 1
ATOMIC = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory", "http", "https"}
)
"""Protocols of stores in which a file appears with its whole content or not at all."""


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``fsspec``."""
    register("fsspec", open_remote)


def open_remote(address: str, **options: Any) -> FileSystemStore:
    """Return the files below an address.

    Args:
        address: Such as ``s3://bucket/prefix``.
        **options: Of the file system, such as ``endpoint_url``; else its own environment variables and files count.

    Raises:
        UsageError: fsspec knows no such protocol.
        MissingDependency: The library for it is not installed.
    """
    protocol = address.partition("://")[0]
    system = filesystem_class(protocol)
    settings = {**system._get_kwargs_from_urls(address), "use_listings_cache": False, **options}
    root = str(system._strip_protocol(address)).rstrip("/")
    return FileSystemStore(system(skip_instance_cache=True, **settings), root, protocol in ATOMIC)
