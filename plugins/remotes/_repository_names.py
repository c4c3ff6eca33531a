"""Names of repositories in container registries, and addresses of them.

After the OCI Distribution Specification 1.1: parts of a-z and 0-9, with single separators between them.
"""

from __future__ import annotations

import re

from compatkit.errors import UsageError

_HOST = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")
_LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|::1")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_SEPARATORS = re.compile(r"[-._]{2,}")
REPLACED = "--"
"""What stands for separators in a row, which component names may have and repositories may not."""


def split_address(address: str) -> tuple[str, str]:
    """Return the host, with its port if it has one, and the prefix of an address; the prefix may be empty.

    Args:
        address: ``oci://HOST[:PORT][/PREFIX]``.

    Raises:
        UsageError: The address is malformed.
    """
    host, _, prefix = address.partition("://")[2].partition("/")
    prefix = prefix.strip("/")
    if not _HOST.fullmatch(host) or "@" in prefix:  # which may follow a password
        raise UsageError(
            "expected oci://HOST[:PORT]/PREFIX, a container registry; users log in with `docker login` or `skopeo "
            "login`, versions are patterns such as NAME@1.0.0, and Oracle's object storage has s3:// addresses"
        )
    if prefix and not is_repository(prefix):
        raise UsageError(
            f"expected a repository of a-z, 0-9, '.', '_', '-' and '/' after the host, got {prefix!r:.200}; components "
            "and versions are patterns, such as 'digits/*' or NAME@1.0.0"
        )
    return host, prefix


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its name alone.

    Args:
        host: Host, with or without a port.
    """
    match = _HOST.fullmatch(host)
    return match is not None and _LOOPBACK.fullmatch(match[1].strip("[]").lower()) is not None


def is_repository(name: str) -> bool:
    """Return whether a text is the name of a repository."""
    return _REPOSITORY.fullmatch(name) is not None


def repository_of(prefix: str, name: str) -> str:
    """Return the repository of a component.

    Args:
        prefix: Prefix of all repositories; may be empty.
        name: Name of the component. What no component can be called gives no name of a repository either.
    """
    path = name if is_repository(name) else _SEPARATORS.sub(REPLACED, name)
    return f"{prefix}/{path}" if prefix else path
