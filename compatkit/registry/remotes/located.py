"""Open an address with the plugin of its scheme: a folder, an object store or packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import CompatkitError, PluginError, UnknownName, UsageError, type_of
from compatkit.foundation.addresses import shown
from compatkit.foundation.credentials import remember, safe_cause
from compatkit.registry.copy.report import Refusal
from compatkit.registry.remotes import failures
from compatkit.registry.remotes.files import Files, convert_errors
from compatkit.registry.remotes.objectstore import ObjectStore
from compatkit.registry.remotes.packages import Package, PackageStore
from compatkit.registry.resolving import split

FALLBACK = "fsspec"
"""Plugin for schemes without a plugin of their own."""


@attrs.frozen(eq=False)
class Packages:
    """Packages at an address.

    Attributes:
        store: Package store that a plugin opened.
        url: Address for messages, without secrets.
    """

    store: PackageStore = attrs.field(repr=False)
    url: str

    def read(self, patterns: Sequence[str], refused: list[Refusal]) -> Iterator[Package]:
        """Yield at least the packages of components that patterns name; add unreadable ones to ``refused``."""
        names = [split(pattern)[0] for pattern in patterns]
        with convert_errors(self.url, "list", ""):
            yield from self.store.named_packages(
                names, lambda what, error: refused.append(Refusal(what, error))
            )

    def exists(self, names: Sequence[str]) -> bool:
        """Return whether there are packages at the address.

        Args:
            names: Names of the components that are going to be written.
        """
        with convert_errors(self.url, "list", ""):
            return self.store.exists(names)


Located = Path | Files | Packages
"""A folder, or a remote that a plugin opened."""


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
