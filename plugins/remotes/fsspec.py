"""Remotes through fsspec: S3 and all other protocols without a plugin of their own."""

from __future__ import annotations

from typing import Any

from compatkit import hookimpl
from compatkit.hooks import Register

from ._filesystem import FileSystemStore, filesystem_class

compatkit_api = 1
ATOMIC = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory", "http", "https"}
)
"""Protocols of stores in which a file appears with its complete content or not at all."""


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``fsspec``."""
    register("fsspec", open_remote)


def open_remote(address: str, **options: Any) -> FileSystemStore:
    """Return the files at an address.

    Args:
        address: Address such as ``s3://bucket/prefix``.
        **options: Options of the file system, such as ``endpoint_url``; it also reads its own environment variables
            and configuration files.

    Raises:
        UsageError: fsspec does not know the protocol.
        MissingDependency: The required library is not installed.
    """
    protocol = address.partition("://")[0]
    system = filesystem_class(protocol)
    settings = {**system._get_kwargs_from_urls(address), "use_listings_cache": False, **options}
    root = str(system._strip_protocol(address)).rstrip("/")
    return FileSystemStore(system(skip_instance_cache=True, **settings), root, protocol in ATOMIC)
