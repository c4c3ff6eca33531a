"""Parts of the address of a remote on a server."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import attrs

from compatkit.errors import UsageError


@attrs.frozen
class Location:
    """A folder on a server.

    Attributes:
        scheme: Scheme of the address.
        host: Name or number of the server.
        port: Port; None for that of the scheme.
        path: Path of the folder, with a slash at the start.
        user: User; None if the address names none.
        password: Password; None if the address names none.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def parse(cls, address: str) -> Location:
        """Return the parts of an address, without escapes.

        Args:
            address: ``scheme://[USER[:PASSWORD]@]HOST[:PORT]/FOLDER``.

        Raises:
            UsageError: It has no host, no usable port, or a query or fragment.
        """
        parts = urlsplit(address)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            raise UsageError("Expected a port from 1 to 65535 after the host.") from None
        if not host:
            raise UsageError(f"Expected a host, as in {parts.scheme}://host/folder.")
        if "?" in address or "#" in address:
            raise UsageError("Expected no ? and no # in an address; write %3F or %23 in a folder's name.")
        user, password = (
            None if text is None else unquote(text) for text in (parts.username, parts.password)
        )
        return cls(parts.scheme, host, port, unquote(parts.path) or "/", user, password)

    @property
    def netloc(self) -> str:
        """Host and port as an address has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"
