"""Copy a version to another name or number of its registry: the same manifest, byte for byte, under a second name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compatkit.errors import PolicyDataMissing, PolicyUndecided, UsageError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry.names import Reference, Version
from compatkit.registry.publish import Publisher
from compatkit.registry.required_blobs import RequiredBlobs

if TYPE_CHECKING:
    from compatkit.registry.copy.admission import PolicyCheckFactory
    from compatkit.registry.required_partners import PolicyRequirement
    from compatkit.registry.store import Store


def copy(
    store: Store,
    reference: str,
    target: str,
    *,
    major: bool = False,
    policy_checks: PolicyCheckFactory | None = None,
    unmeasured: bool = False,
) -> Reference:
    """Publish the manifest of a version under another name or number; its digest stays the same.

    Args:
        store: Registry of the version.
        reference: Reference to the version to copy.
        target: ``name`` for the smallest number that the rules require after the latest version of this name, or
            ``name@version``. The name of the version itself gives it a further number.
        major: Whether to take the next MAJOR number, to which policies do not apply; only without a version.
        policy_checks: Factory of the check of the target's policy; None refuses versions that need a measurement.
        unmeasured: Whether to admit a version that was not measured as a policy requires; its log records it.

    Returns:
        Name, version and digest. A second call returns the same version.

    Raises:
        NotFound: The reference cannot be resolved.
        SignatureError: The store requires a signature, and the version has no valid one.
        UsageError: The version was withdrawn, the target is no name or version, or has versions of another kind.
        VersionExists: The number belongs to another manifest.
        VersionTooSmall: The change requires a larger step.
        PolicyBroken: The version does not work with a released partner of the target.
        PolicyUndecided: A policy of the target requires a measurement.
        IntegrityError: A blob is missing or damaged.
        EnvironmentFailure: Disk full, no write permission, ...; nothing is published.
    """
    store.layout.check_writer(store.root)
    source, wanted = _source(store, reference), _target(target)
    number = None if wanted.version is None else str(wanted.version)
    if major and number is not None:
        raise UsageError(f"{wanted.name}: give a version ({number}) or the next MAJOR number, not both.")
    manifest = store.manifest(source)
    check_kind(store, wanted.name, manifest.kind)

    unmeasured_scope = ""

    def policy_check(requirement: PolicyRequirement) -> None:
        nonlocal unmeasured_scope
        unmeasured_scope = ""
        try:
            if policy_checks is None:
                raise PolicyUndecided(
                    f"{requirement.name}: the policy {requirement.policy} requires a measurement of this "
                    f"{requirement.kind} with {requirement.partner_names()}.",
                    subject=requirement,
                )
            policy_checks(store)(requirement)
        except (PolicyUndecided, PolicyDataMissing):
            if not unmeasured or requirement.revision is None:
                raise
            unmeasured_scope = requirement.revision.scope

    def record_unmeasured(version: Version) -> None:
        admitted = Reference(wanted.name, version)
        if unmeasured_scope and str(admitted) not in store.policies.admitted(wanted.name):
            store.policies.admit(unmeasured_scope, admitted, store.author)

    publisher = Publisher(
        RequiredBlobs(store.objects, store.id, {}, wanted.name, manifest),
        store.references,
        store.finder,
        major=major,
        policy_check=policy_check,
        author=store.author,
        data=store.objects.read(str(source.digest), max_bytes=MAX_BYTES),
        copied=source.version if source.name == wanted.name else None,
        before_link=record_unmeasured,
    )
    return publisher.publish(number)


def check_kind(store: Store, name: str, kind: str) -> None:
    """Raise if a component of this kind cannot be published under a name.

    All versions of a name have one kind, because the bare name means the newest version.

    Args:
        store: Registry to publish to.
        name: Name to publish under.
        kind: Kind of the component.

    Raises:
        UsageError: The latest version of this name has another kind.
    """
    latest = store.references.latest(name)
    if latest is None:
        return
    published = store.manifest(Reference(name, latest)).kind
    if published != kind:
        old, new = (word.replace("_", " ") for word in (published, kind))
        raise UsageError(
            f"{name}@{latest} is of kind {old}, and this would be of kind {new}. Choose another name.",
            subject=name,
        )


def _source(store: Store, reference: str) -> Reference:
    """Return the version to copy: not withdrawn, and signed if the store requires that."""
    source = store.resolve(reference)
    tombstone = None if source.version is None else store.tombstone(source.name, source.version)
    if tombstone is not None:
        raise UsageError(
            f"{source} was withdrawn on {tombstone.time}: {tombstone.reason}. A copy would bring it back under another "
            "number.",
            subject=str(source),
        )
    if (signers := store.signers) is not None:
        from compatkit.registry.signing.verify import require_signature

        require_signature(store, source, signers, "auto")
    return source


def _target(text: str) -> Reference:
    target = Reference.parse(text)
    if target.alias or target.range or target.digest:
        raise UsageError(
            f"Expected a name, or a name with a version such as {target.name}@1.2.0, for the copy; got {text!r:.200}. "
            f"An alias is set with `compatkit alias {target.name} ALIAS VERSION`.",
            subject=text,
        )
    return target
