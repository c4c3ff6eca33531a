"""Find the registry of a command, and check that it can be written before any work is done."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.cli.command_line import command_line
from compatkit.cli.options import Options, option
from compatkit.cli.output import news
from compatkit.cli.writable import check_folder
from compatkit.errors import EnvironmentFailure, LayoutError, UsageError
from compatkit.foundation.addresses import is_remote, normalized, remote_name, shown
from compatkit.foundation.cache import mirrored

if TYPE_CHECKING:
    from compatkit.components.registry import Registry
    from compatkit.contracts.kinds import Kind
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.signing.trust import Trusted
    from compatkit.registry.store import Store

trusted_option = option(
    "Trust these keys instead of yours: a folder of public keys, a file of one, or a key; may be repeated.",
    metavar="WHOM",
)


class SignatureOptions(Options):
    """Signatures required of loaded components."""

    require_signature: bool = option("Refuse components without a trusted signature; implied by --trusted.")
    trusted: tuple[str, ...] = trusted_option

    @property
    def signed(self) -> bool:
        """Whether loaded components must be signed."""
        return self.require_signature or bool(self.trusted)


def open_store() -> Store:
    """Open the store named on the command line, or the copy of a remote; imports no torch.

    Raises:
        LayoutError: There is none, or its layout is not supported.
    """
    from compatkit.registry.opening import open_store as open_at

    root, trusted, key = requested_root(), demanded(), signing_key()
    if not is_remote(root):
        return open_at(None if root is None else Path(root).expanduser(), trusted, key)
    store = open_at(root, trusted, key)
    if (address := mirrored(store.root)) is not None:
        command_line().addresses[str(store.root)] = address
        news(f"{address}, a remote that is only read, as it is now")
    return store


def requested_root() -> str | None:
    """Return the registry named by the command line or the environment, or None."""
    from compatkit.registry.layout import VARIABLE

    root = command_line().registry or os.environ.get(VARIABLE) or None
    return root if root is None or remote_name(root) is not None else normalized(root)


def demanded() -> Trusted | None:
    """Return the keys whose signature is required, or None.

    Raises:
        KeyFileError: The trusted keys cannot be determined.
        MissingDependency: ``cryptography`` is not installed.
    """
    options = command_line().options
    if not isinstance(options, SignatureOptions) or not options.signed:
        return None
    from compatkit.registry.signing.keys import check_installed
    from compatkit.registry.signing.trust import Trusted

    check_installed()
    return Trusted.of(options.trusted or True)


def signing_key() -> SigningKey | None:
    """Return the key of ``--sign-with``, or None; COMPATKIT_KEY counts without it.

    Raises:
        KeyFileError: The key cannot be used.
        MissingDependency: ``cryptography`` is not installed.
    """
    text = getattr(command_line().options, "sign_with", None)
    if text is None:
        return None
    from compatkit.cli.private_keys import open_key

    return open_key(text)


def open_registry() -> Registry:
    """Open the registry named on the command line."""
    from compatkit.components.registry import Registry

    return Registry(open_store())


def destination() -> Path:
    """Return the folder of the registry to publish to, without writing to it.

    A named folder that is missing or empty becomes a registry when something is published, so a command that fails
    before leaves nothing behind.

    Raises:
        LayoutError: No registry is named or found, or the folder is not one and contains other files.
        UsageError: It is the address of a remote.
        EnvironmentFailure: It cannot be written.
    """
    from compatkit.registry.layout import FOLDERS, MARKER, VARIABLE, locate

    name = requested_root()
    if is_remote(name):
        address = shown(str(name))
        raise UsageError(
            f"{address} is a remote, which is only read. Clone it (`compatkit clone {address} FOLDER`), change the "
            f"clone, and push (`compatkit --registry FOLDER push {address}`).",
            subject=address,
        )
    root = Path(name if name is not None else locate(None)).expanduser().absolute()
    if (root / MARKER).exists():
        _try_to_write(root)
        return root
    own = {folder.split("/")[0] for folder in FOLDERS}
    if root.is_dir() and not {entry.name for entry in root.iterdir()} <= own:
        raise LayoutError(
            f"{root} is not a registry and holds other files. Name another folder (--registry, {VARIABLE}), or run "
            f"`compatkit init {root}`.",
            subject=root,
        )
    check_folder(_above(root), f"the registry {root}")
    return root


def ensure_store(root: Path) -> tuple[Store, bool]:
    """Open the registry in ``root``, creating it if necessary; a failure leaves no empty folders behind.

    Returns:
        The store, and whether it is new.

    Raises:
        EnvironmentFailure: The folder cannot be created or written.
    """
    from compatkit.registry.layout import FOLDERS, MARKER
    from compatkit.registry.store import Store

    fresh, above = not (root / MARKER).exists(), _above(root)
    try:
        return attrs.evolve(Store.init(root, exist_ok=True), key=signing_key()), fresh
    except EnvironmentFailure:
        below = [root / name for name in FOLDERS]
        created = {folder for leaf in below for folder in (leaf, *leaf.parents) if above in folder.parents}
        for folder in sorted(created, reverse=True) if not (root / MARKER).exists() else ():
            with suppress(OSError):  # not empty, or missing
                folder.rmdir()
        raise


def open_or_create_store(root: Path) -> Store:
    """Open the registry at a ``destination``, creating it if necessary, with a message."""
    store, fresh = ensure_store(root)
    if fresh:
        news(f"made the registry {root}")
    return store


def open_or_create_registry(root: Path) -> Registry:
    """Open the registry at a ``destination`` for publishing, creating it if necessary."""
    from compatkit.components.registry import Registry

    return Registry(open_or_create_store(root))


def check_target(name: str, kind: Kind, version: str | None = None) -> None:
    """Raise if a component of this kind cannot be published under a name and version; see ``check_kind``.

    Args:
        name: Name to publish under.
        kind: Kind of the component.
        version: Version to publish, or None.

    Raises:
        InvalidName: The name or the version is malformed.
        EnvironmentFailure: The registry cannot be written.
        LayoutError: There is no registry.
        UsageError: A component of another kind has this name.
    """
    from compatkit.registry.names import Version, check_name
    from compatkit.registry.second_names import check_kind

    check_name(name)
    if version is not None:
        Version.parse(version)
    destination()
    check_kind(open_store(), name, kind)


def _above(root: Path) -> Path:
    """Return ``root``, or the nearest existing folder above it."""
    return next(folder for folder in (root, *root.parents) if folder.exists())


def _try_to_write(root: Path) -> None:
    """Write and remove one byte below ``root``, to detect a full or read-only disk at once."""
    from compatkit.registry import disk as durable
    from compatkit.registry.os_errors import environment
    from compatkit.registry.store import Store

    Store.open(root).layout.check_writer(root)
    with environment("write below", root):
        durable.make_folder(root / "tmp", root)
        draft = durable.temporary(root / "tmp")
        durable.write(draft, [b"?"], root=root)
        durable.discard(draft)
