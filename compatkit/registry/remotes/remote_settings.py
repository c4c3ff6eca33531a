"""Read and change the settings of a remote registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compatkit.errors import UsageError
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.copy.endpoints import SmallFile, Target
from compatkit.registry.copy.local import LocalRegistry
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.packaging import Packages
from compatkit.registry.remotes.remote import Remote
from compatkit.registry.settings import FOLDER, SettingsChange, SettingsInForce, next_change, to_bytes
from compatkit.registry.signing.signatures import FOLDER as SIGNATURES
from compatkit.registry.signing.signatures import file_name
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.registry.authorship import Author
    from compatkit.registry.opening import AnyRegistry
    from compatkit.registry.remotes.located import Located


def remote_rules(
    remote: AnyRegistry | Located, *, options: Mapping[str, Any] | None = None
) -> SettingsInForce:
    """Return the settings in force of a remote.

    Args:
        remote: Folder, or an address that a plugin opens.
        options: Keyword arguments for the remote's plugin.

    Raises:
        LayoutError: The remote is not a registry.
        UsageError: The address or the options cannot be used, or the remote has no settings, such as packages.
        EnvironmentFailure: No permission, no network.
    """
    with _registry(remote, options) as target:
        return target.rules()


def change_remote_settings(
    remote: AnyRegistry | Located,
    author: Author,
    *,
    options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> SettingsChange:
    """Change the settings of a remote; fields that are not given stay as they are.

    Args:
        remote: Folder, or an address that a plugin opens.
        author: Author, who must be an owner if there are owners.
        options: Keyword arguments for the remote's plugin.
        **changes: New values of fields of ``RegistrySettings``.

    Returns:
        The change in force; an earlier one if nothing is different.

    Raises:
        NotAllowed: The author is not an owner; or would not be able to change the settings again.
        LayoutError: The remote is not a registry.
        UsageError: A field is unknown or has no valid value, or the remote cannot be used.
        EnvironmentFailure: No permission, no network; nothing changed.
    """
    with _registry(remote, options) as target:
        target.begin()
        while True:
            rules = target.rules()
            number = max((change.number for change in rules.history), default=0) + 1
            change = next_change(rules, number, author, changes)
            if change == rules.change:
                return change
            path, data = f"{FOLDER}/{number}", to_bytes(change, author, target.identity())
            if author.key is not None:
                digest = digest_of(data)
                signature = author.key.sign(digest, path, is_change=True).to_bytes()
                folder = f"{SIGNATURES}/{digest.removeprefix('sha256:')}"
                target.create([SmallFile(f"{folder}/{file_name(signature, digest)}", signature)])
            if not target.create([SmallFile(path, data)]):
                return change


@contextmanager
def _registry(remote: AnyRegistry | Located, options: Mapping[str, Any] | None) -> Iterator[Target]:
    located = locate(remote, options)
    if isinstance(located, Packages):
        raise UsageError(f"{located.url} holds images, which have no settings.", subject=located.url)
    if isinstance(located, Path):
        yield LocalRegistry(Store.open(located))
        return
    with closing(Remote(located)) as target:
        target.check()
        yield target
