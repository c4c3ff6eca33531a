"""Drop a version number of one registry, because another registry uses it for other bytes.

Nothing is lost: the manifest must have another name or number. The record is created first, then the version file moves
to ``trash``; after a crash in between, the version is still there, and the call can be repeated. Afterwards everything
that the decision depended on is read again, and the version put back if that changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.manifest import TRAINED_WITH, Manifest, function_digest, trained_with
from compatkit.errors import IntegrityError, UsageError
from compatkit.registry import disk as durable
from compatkit.registry.drop_records import DropRecord, drop_log, last_drop
from compatkit.registry.log import LIMIT, Log, now
from compatkit.registry.names import Reference, Version
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import read_line

if TYPE_CHECKING:
    from compatkit.registry.policies import Policy
    from compatkit.registry.store import Store


def drop(store: Store, reference: str, reason: str) -> DropRecord:
    """Free a version number in this registry; the component keeps its other names and numbers.

    Args:
        store: Registry of the version.
        reference: ``name@version``.
        reason: Text shown to users who request the version.

    Returns:
        The record; that of the first call if the number is free already.

    Raises:
        NotFound: No such version.
        UsageError: No version is named, no reason is given; or the number must stay: it was withdrawn, an alias points
            at it, a policy relies on it, or the component has no other name or number.
        NotAllowed: The settings of the registry do not let this author drop versions.
        EnvironmentFailure: Disk full, no write permission, ...; the version is still there.
    """
    store.layout.check_writer(store.root)
    wanted = Reference.parse(reference)
    if wanted.version is None:
        raise UsageError(
            f"Name the version to drop, such as {wanted.name}@1.0.0; got {reference!r:.200}.",
            subject=reference,
        )
    if not reason.strip():
        raise UsageError(f"Dropping {wanted} needs a reason; it is shown to users who request the version.")
    name, version = wanted.name, wanted.version
    digest = store.references.digest(name, version)
    if digest is None:
        if (existing := last_drop(drop_log(store.references, name, version))) is not None:
            _sync(store, name)
            return existing
        digest = str(store.resolve(Reference(name, version)).digest)  # raises with the versions that exist
    wanted = Reference(name, version, digest=digest)
    store.rules.check_author("maintainers", store.author, f"drop {name}@{version}", f"{name}@{version}")
    kept = _check(store, wanted)
    record = _recorded(store, drop_log(store.references, name, version), digest, str(kept), reason)
    _remove(store, wanted)
    return record


def _check(store: Store, dropped: Reference) -> Reference:
    """Return the other version with the same manifest; raise if the number must stay."""
    _check_not_needed(store, dropped)
    others = list(_other_versions(store, dropped))
    if not others:
        raise UsageError(
            f"{dropped} is the only name of {dropped.digest} here, and dropping it would lose it. Copy it first: "
            f"`compatkit copy {dropped} --as {dropped.name}@{_next_major(store, dropped.name)}`, or --as OTHER.",
            subject=str(dropped),
        )
    policy, partner = policy_that_relies(store, dropped) or (None, "")
    if policy is not None:
        raise UsageError(
            f"{dropped} is released with {partner}, and the policy {policy} relies on its number. Clear the policy "
            f"(`compatkit policy clear '{policy.scope}'`), and set it again after the number is used for the other "
            "component.",
            subject=str(dropped),
        )
    return max(others, key=lambda other: (other.name == dropped.name, other.name, other.version))


def _check_not_needed(store: Store, dropped: Reference) -> None:
    """Raise if the version was withdrawn, or an alias points at it."""
    name, version = dropped.name, str(dropped.version)
    if store.references.withdrawals(name).log(Version.parse(version)):
        raise UsageError(
            f"{dropped} was withdrawn. The number of a version that was ever withdrawn is not used again.",
            subject=str(dropped),
        )
    aliases = [alias for alias, target in store.aliases(name).items() if target == version]
    if aliases:
        raise UsageError(
            f"The alias {aliases[0]} points at {dropped}. Move it first: `compatkit alias {name} {aliases[0]} VERSION`"
            f", or remove it: `compatkit alias {name} {aliases[0]} --remove`.",
            subject=str(dropped),
        )


def _next_major(store: Store, name: str) -> Version:
    return max(store.references.used_numbers(name)).bumped("major")


def _other_versions(store: Store, dropped: Reference) -> Iterator[Reference]:
    """Yield the other versions with this manifest that are not withdrawn; the files decide, not the index."""
    for match in store.index.search(digest=dropped.digest):
        other = Reference(match.name, Version.parse(match.version), digest=dropped.digest)
        if other != dropped and _exists(store, other):
            yield other


def _exists(store: Store, reference: Reference) -> bool:
    name, version = reference.name, reference.version
    if version is None or version in store.references.withdrawn(name):
        return False
    with suppress(IntegrityError):
        return store.references.digest(name, version) == reference.digest
    return False


def policy_that_relies(store: Store, dropped: Reference) -> tuple[Policy, str] | None:
    """Return a policy that measures new versions with a pair of this number, and the other part of the pair.

    Another number of the same name with the same function stands in for it, unless the policy is about the other MAJOR
    line only.

    Args:
        store: Registry of the version.
        dropped: Name, version and digest.

    Returns:
        Policy, and ``name@version`` of the other part; None if no policy relies on the number.
    """
    manifest = store.manifest(dropped)
    partners = list(_partners(store, dropped, manifest))
    bound = [(dropped.name, manifest.kind, partner) for _, partner in partners]
    if manifest.kind == "extractor":  # a head's policy finds its extractors by the names of the lines
        bound += [(name, "head", partner) for name, partner in partners]
    for name, kind, partner in bound:
        revision = store.policies.of(name)
        policy = None if revision is None else revision.policy
        if (
            policy is not None
            and policy.concerns(kind)
            and not _has_stand_in(store, dropped, manifest, policy)
        ):
            return policy, partner
    return None


def _partners(store: Store, dropped: Reference, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield name and reference of the released parts that this one was trained with, or the other way round."""
    if manifest.kind == "extractor":
        for head in store.index.search(kind="head", parent=dropped.digest):
            if (TRAINED_WITH, dropped.digest) in head.parents:
                yield head.name, f"{head.name}@{head.version}"
    for parent in trained_with(manifest) if manifest.kind == "head" else ():
        for own in store.index.search(kind="extractor", digest=parent):
            yield own.name, f"{own.name}@{own.version}"


def _has_stand_in(store: Store, dropped: Reference, manifest: Manifest, policy: Policy) -> bool:
    function = function_digest(manifest)
    references, name = store.references, dropped.name
    for version in {*references.versions(name)} - {*references.withdrawn(name), dropped.version}:
        if policy.across_major or version.major == (dropped.version and dropped.version.major):
            digest = references.digest(name, version)
            if digest is not None and store.function_of(digest) == function:
                return True
    return False


def _recorded(store: Store, log: Log, digest: str, kept: str, reason: str) -> DropRecord:
    """Create the record, unless an interrupted call has created the same."""
    last = last_drop(log)
    if last is not None and (last.digest, last.kept, last.reason) == (digest, kept, reason):
        return last
    author = store.author
    record = DropRecord(0, digest, kept, reason, now(), author.by, author.commit)
    number = log.append(lambda numbers: record.to_bytes(), author.signer(store.root))
    return attrs.evolve(record, number=number or 0)


def _remove(store: Store, dropped: Reference) -> None:
    """Move the version file to ``trash``; put it back if the number is needed now, or was another one's."""
    root = store.root
    path = store.references.folder(dropped.name) / f"@versions/{dropped.version}"
    trashed = root / "trash" / f"version-{dropped.version}-{durable.temporary(root).name}"
    removed: str | None = None
    with durable.announced(root), environment("drop", path):
        durable.make_folder(trashed.parent, root)
        durable.check_folders(path.parent, root)
        with suppress(FileNotFoundError):  # another process has dropped it
            durable.move(path, trashed)
            removed = _digest_in(trashed, root) or dropped.digest
            _sync(store, dropped.name)
            with suppress(PermissionError):  # another user's file; its ctime shows when it was moved
                durable.touch(trashed)
        try:
            if removed not in (None, dropped.digest):
                text = f"{dropped} was dropped by another process, and is {removed} now."
                raise UsageError(text, subject=str(dropped))
            _check(store, dropped)
        except (UsageError, IntegrityError) as error:
            version = dropped.version
            if removed and version and store.references.create(dropped.name, version, removed):
                error.add_note("That changed meanwhile, and the version was put back.")
            raise


def _sync(store: Store, name: str) -> None:
    """Make the removal durable; an earlier call may have been interrupted before it did."""
    for folder in (store.references.folder(name) / "@versions", store.root / "trash"):
        with environment("sync", folder), suppress(FileNotFoundError):
            durable.sync_folder(folder)


def _digest_in(path: Path, root: Path) -> str | None:
    """Return the digest in a version file; None if it is torn or missing."""
    content = durable.read(path, root, limit=LIMIT)
    line = None if content is None else read_line(content[0])
    return None if line is None else line[0]
