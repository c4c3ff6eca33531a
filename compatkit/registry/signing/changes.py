"""Sign entries of logs: moves of aliases, withdrawals and restorations.

The signed name of an entry is its path relative to the root, which states component, alias or version, and number, so
that a signed entry counts nowhere else. Signatures are stored like those of manifests, by the digest of the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import disk as durable
from compatkit.registry.log import LIMIT, names_in
from compatkit.registry.signing.checks import check_signature
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.withdrawals import entry_path

if TYPE_CHECKING:
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.store import Store


def sign_change(store: Store, key: SigningKey, path: str, data: bytes) -> bool:
    """Sign an entry, before or after it is created; return False if a signature of the key is valid already.

    Args:
        store: Files of the registry.
        key: Private key.
        path: Path of the entry, relative to the root.
        data: Content of the entry.

    Raises:
        KeyExpired: The key has expired.
        EnvironmentFailure: Disk full, no write permission.
    """
    digest, own = digest_of(data), Trusted({key.public.id: key.public})
    if any(
        check_signature(signature, digest, own, name=path, is_change=True).valid
        for signature in store.signatures.of(digest, own)
    ):
        return False
    return store.signatures.add(digest, key.sign(digest, path, is_change=True).to_bytes())


def sign_changes(store: Store, names: Iterable[str], key: SigningKey) -> list[str]:
    """Sign all moves of aliases, withdrawals and restorations of some names; return the paths of those newly signed.

    Args:
        store: Files of the registry.
        names: Names of components.
        key: Private key.

    Raises:
        KeyExpired: The key has expired.
        EnvironmentFailure: Disk full, no write permission.
    """
    store.layout.check_writer(store.root)
    signed: list[str] = []
    for path in (path for name in names for path in _entries(store, name)):
        data = durable.read_finished(store.root / path, store.root, limit=LIMIT)
        if data and sign_change(store, key, path, data):
            signed.append(path)
    return signed


def _entries(store: Store, name: str) -> Iterator[str]:
    folder = f"refs/{name}/@log"
    for alias in sorted(names_in(store.root / folder, store.root)):
        for move in store.alias_log(name, alias):
            yield f"{folder}/{alias}/{move.number}"
    withdrawals = store.references.withdrawals(name)
    for version in sorted(store.references.used_numbers(name)):
        for entry in withdrawals.log(version):
            yield entry_path(name, version, entry.number)
