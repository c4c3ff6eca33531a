"""Remote registries that are only read: a copy of their small files in the user's cache folder.

Each use brings the copy up to date, whatever changed in the remote: it is no registry of its own. Weights are fetched
when they are loaded. The folder can be deleted at any time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import CompatkitError, UsageError
from compatkit.foundation import cache
from compatkit.foundation.addresses import is_url
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry.copy.blobs import BlobCopier
from compatkit.registry.copy.endpoints import ComponentBlob
from compatkit.registry.copy.local import LocalRegistry
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.layout import FOLDERS, MARKER
from compatkit.registry.names import Reference
from compatkit.registry.os_errors import environment
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.located import open_address
from compatkit.registry.remotes.named import SavedRemote, find
from compatkit.registry.remotes.remote import Remote
from compatkit.registry.remotes.sources import add_source
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.signing.trust import Trusted

IMMUTABLE = ("evidence", "signatures")
"""Folders of files whose content belongs to their path."""
SMALL_FILES = (*IMMUTABLE, "policies", "settings", "withdrawals")
"""Folders of small files besides ``refs``."""
_LISTED = ".listed"
_PATH = re.compile(r"[a-z]+(?:/[A-Za-z0-9_%@*?~+=!,\[\]-][A-Za-z0-9._%@*?~+=!,\[\]-]{0,199}){1,8}")
"""Paths below a folder of the layout, none of which leads out of it."""


def is_path(path: str) -> bool:
    """Return whether a path that a remote lists can be a file of a registry, and lies in its folder."""
    return _PATH.fullmatch(path) is not None


def open_remote(address: str, trusted: Trusted | None = None, key: SigningKey | None = None) -> Store:
    """Open a remote for reading; a folder that has a name is opened itself.

    Args:
        address: Address, or ``NAME:`` of a saved remote.
        trusted: Keys that must have signed each loaded component; None requires no signature.
        key: Key that signs changes, of a folder; or None.

    Returns:
        Registry in the cache with everything but the weights, as it is in the remote now. Writing to it is refused.

    Raises:
        LayoutError: There is no registry.
        UsageError: The address cannot be used, has packages, or comes with secrets.
        EnvironmentFailure: No permission, no network, disk full.
    """
    remote = find(address) or SavedRemote.of(address)
    if not is_url(remote.address):
        return Store.open(remote.address, trusted, key)
    located = open_address(remote.address, remote.options)
    if isinstance(located, Path):
        return Store.open(located, trusted, key)
    if not isinstance(located, Files):
        raise UsageError(
            f"{remote} holds images, which are not read in place; get them with `compatkit pull {remote}`.",
            subject=str(remote),
        )
    with environment("write below", cache.above()):
        root = cache.mirror(str(remote), dumps(remote.to_json()))
        with _locked(root.parent), closing(Remote(located)) as origin:
            _update(root, origin, remote)
        return Store.open(root, trusted, key)


def _update(root: Path, origin: Remote, remote: SavedRemote) -> None:
    """Bring the copy of a remote up to date."""
    layout = origin.check()
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    _write(root, MARKER, dumps(attrs.asdict(layout)))
    store = Store.open(root)
    add_source(root, store.id, remote)
    origin.local = store.objects
    origin.load(origin.names())
    listed = [path for path in origin.list_small_files(SMALL_FILES) if is_path(path)]
    _copy_documents(store, origin, [path for path in listed if path.startswith("evidence/")])
    files: dict[str, bytes | None] = dict(_references(Path(origin.scratch)))
    known = {path for path in listed if path.startswith(IMMUTABLE) and (root / path).is_file()}
    files |= dict(origin.read_small_files([path for path in listed if path not in known]))
    _synchronize(root, {path: data for path, data in files.items() if data is not None}, known)


def _copy_documents(store: Store, origin: Remote, results: list[str]) -> None:
    """Copy manifests, results and what they refer to; damaged ones are left out, and reported where they are read."""
    target = LocalRegistry(store)
    copier = BlobCopier(origin, target, TransferSettings(weights=False), [])
    components: list[Reference] = []
    for name, version in origin.references.each():
        with suppress(CompatkitError):
            digest = origin.references.digest(name, version)
            if digest is not None and store.objects.size(digest) is None:
                components.append(Reference(name, version, digest=digest))
    copier.add_components(components)
    wanted = {f"sha256:{path.rpartition('/')[2]}" for path in results}
    missing = [digest for digest in sorted(wanted) if store.objects.size(digest) is None]
    copier.add([ComponentBlob(digest, "blob", "a result") for digest in missing])
    digests: dict[str, None] = {}
    for digest in (*dict.fromkeys(str(reference.digest) for reference in components), *missing):
        with suppress(CompatkitError):
            digests |= dict.fromkeys(copier.blobs_of(digest))
    documents = {*missing, *copier.components(digests)}
    for group in ([digest for digest in digests if digest not in documents], documents & digests.keys()):
        copier.copy_all(copier.missing(group))  # documents last: one that is here is complete


def _references(scratch: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of names that were loaded, with paths of the layout only."""
    for path in sorted(scratch.glob("refs/**/*")):
        if path.is_file() and path.name != _LISTED:
            yield path.relative_to(scratch).as_posix(), path.read_bytes()


def _synchronize(root: Path, files: Mapping[str, bytes], known: set[str]) -> None:
    """Write small files that are new or changed, versions last, and remove those that are gone."""
    for path in sorted(files, key=lambda path: ("/@versions/" in path, path)):
        _write(root, path, files[path])
    for top in ("refs", *SMALL_FILES):
        for path in sorted((root / top).glob("**/*"), reverse=True):
            relative = path.relative_to(root).as_posix()
            if path.is_dir():
                with suppress(OSError):  # not empty
                    path.rmdir()
            elif relative not in files and relative not in known:
                path.unlink(missing_ok=True)


def _write(root: Path, path: str, data: bytes) -> None:
    """Write or replace a file in one step, unless it has this content; a cache need not survive a power cut."""
    target = root / path
    with suppress(OSError):
        if target.read_bytes() == data:
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = durable.temporary(root / "tmp")
    draft.write_bytes(data)
    os.replace(draft, target)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process updates a copy: an older listing must not remove what a newer one added."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.name == "nt":
        yield
        return
    import fcntl

    with open(folder / "lock", "wb") as file:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
