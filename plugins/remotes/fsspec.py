"""Remotes through fsspec: S3, and this process's memory for tests.

fsspec knows many more protocols. Only those are offered here that tests have shown to keep a registry: several of its
file systems leave out folders that cannot be listed, or share one connection between threads.
"""

from __future__ import annotations

from typing import Any

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register

from ._filesystem import FileSystemStore, filesystem_class

compatkit_api = 1
PROTOCOLS = ("s3", "s3a", "memory")
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
        UsageError: The protocol is not offered.
        MissingDependency: The required library is not installed.
    """
    protocol = address.partition("://")[0]
    if protocol not in PROTOCOLS:
        raise UsageError(
            f"{protocol}:// is not an address that compatkit is tested with. Use s3://, hf://, sftp://, webdavs:// or, "
            "to read, https://; or mount the store as a folder; or write a plugin (docs/plugins.md, Write a remote)"
        )
    system = filesystem_class(protocol)
    settings = {**system._get_kwargs_from_urls(address), "use_listings_cache": False, **options}
    root = str(system._strip_protocol(address)).rstrip("/")
    return FileSystemStore(system(skip_instance_cache=True, **settings), root)
