"""Fetch weights that a clone left in its remotes when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from compatkit.errors import CompatkitError, IntegrityError, UsageError
from compatkit.foundation.addresses import is_url
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.copy.endpoints import ComponentBlob, OpenBlob
from compatkit.registry.copy.verified import opened_file, write_verified
from compatkit.registry.layout import inspect
from compatkit.registry.os_errors import environment
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.located import open_address
from compatkit.registry.remotes.remote import Remote
from compatkit.registry.remotes.sources import sources

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Payload
    from compatkit.registry.remotes.named import SavedRemote

_fetching: ContextVar[frozenset[Path]] = ContextVar("fetching", default=frozenset())
"""Registries for which this thread fetches; two that name each other must not ask in circles."""


def fetch_payload(objects: Objects, identity: str, payload: Payload, owner: str) -> bool:
    """Fetch weights that a clone left in its remotes; see ``fetch``.

    Args:
        objects: Blobs of the registry that needs them.
        identity: Identity of the registry.
        payload: Weights in a manifest.
        owner: Component for messages.
    """
    blob = ComponentBlob(payload.file.blob, "payload", owner, payload.file.bytes, payload)
    return fetch(objects, identity, blob)


def fetch(objects: Objects, identity: str, blob: ComponentBlob) -> bool:
    """Fetch weights that a clone left in its remotes; they are verified before they get their name, and kept.

    Any number of processes may fetch the same weights.

    Args:
        objects: Blobs of the registry that needs them.
        identity: Identity of the registry.
        blob: Digest, size and tensors of the weights.

    Returns:
        Whether they were fetched; False if they are here, also in ``trash`` or damaged in ``quarantine``, or if the
        registry has no such remote.

    Raises:
        IntegrityError: No remote has them, or one has other bytes.
        UsageError: A remote is no registry any more.
        EnvironmentFailure: A remote cannot be reached, or the disk is full.
    """
    root = objects.root.resolve()
    if (
        objects.size(blob.digest) is not None
        or root in _fetching.get()
        or not (remotes := sources(objects.root, identity))
        or objects.copies_aside(blob.digest)
    ):
        return False
    errors: list[CompatkitError] = []
    token = _fetching.set(_fetching.get() | {root})
    try:
        for remote in remotes:
            try:
                write_verified(objects, lambda remote=remote: _opened(remote, blob), blob, lambda size: None)
                return True
            except CompatkitError as error:
                errors.append(error)
    finally:
        _fetching.reset(token)
    address, error = remotes[0], errors[0]
    error.args = (
        f"{blob.owner}: the weights {blob.digest} are not in {objects.root}, which was cloned without weights, and "
        f"could not be fetched from {address}: {error} Once that is mended, a load fetches them; `compatkit --registry "
        f"{objects.root} pull {address}` fetches all weights.",
    )
    raise error


@contextmanager
def _opened(remote: SavedRemote, blob: ComponentBlob) -> Iterator[OpenBlob]:
    """Open weights in a remote."""
    located = open_address(remote.address, remote.options) if is_url(remote.address) else Path(remote.address)
    if isinstance(located, Files):
        with closing(Remote(located)) as origin, origin.open(blob.digest, blob.owner) as opened:
            yield opened
        return
    if not isinstance(located, Path):
        raise UsageError(
            f"{remote} holds images, from which single weights are not fetched; pull without --without-weights.",
            subject=str(remote),
        )
    objects = Objects(located)
    fetch(objects, inspect(located).id, blob)  # it may be such a clone, too
    path = objects.path(blob.digest)
    with environment("read", path):
        descriptor = durable.open_plain(path, located)
    if descriptor is None:
        raise IntegrityError(f"{blob.owner}: {located} lacks {blob.digest}.", subject=blob.digest)
    with opened_file(descriptor, path) as opened:
        yield opened
