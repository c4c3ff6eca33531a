"""Remotes through fsspec: this process's memory, for tests.

fsspec knows many more protocols. Only those are offered here that tests have shown to keep a registry: several of its
file systems leave out folders that cannot be listed, or share one connection between threads.
"""

from __future__ import annotations

from typing import Any

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register

from ._filesystem import FileSystemStore, open_system

compatkit_api = 1
PROTOCOLS = ("memory",)
"""Protocols of stores in which a file appears with its complete content or not at all."""


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``fsspec``."""
    register("fsspec", open_remote)


def open_remote(address: str, **options: Any) -> FileSystemStore:
    """Return the files at an address.

    Args:
        address: Address such as ``memory://folder``.
        **options: Options of the file system.

    Raises:
        UsageError: The protocol is not offered.
        MissingDependency: The required library is not installed.
    """
    protocol = address.partition("://")[0]
    if protocol not in PROTOCOLS:
        raise UsageError(
            f"{protocol}:// is not an address that compatkit is tested with. Use s3://, hf://, sftp://, webdavs:// or, "
            "to read, https://; or mount the store as a folder; or write a plugin (hook compatkit_remotes)"
        )
    return FileSystemStore(*open_system(address, options))
