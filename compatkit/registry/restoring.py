"""Take a withdrawal back: the version is checked like an imported one, and everything it refers to must be stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from compatkit.errors import NotFound, UsageError
from compatkit.registry.copy.admission import Admission, PolicyCheckFactory
from compatkit.registry.names import Reference, Version
from compatkit.registry.required_blobs import RequiredBlobs

if TYPE_CHECKING:
    from compatkit.registry.store import Store


def restore(
    store: Store,
    name: str,
    version: str | Version,
    reason: str,
    *,
    policy_checks: PolicyCheckFactory | None = None,
    unmeasured: bool = False,
) -> None:
    """Take the withdrawal of a version back; both stay in its log.

    Args:
        store: Files of the registry.
        name: Name of the component.
        version: Withdrawn version.
        reason: Text for the log.
        policy_checks: Factory of the policy check; None refuses a version that needs a measurement.
        unmeasured: Whether to admit a version that was not measured; the policy's log records it.

    Raises:
        NotFound: There is no such version, or it is not withdrawn.
        UsageError: No reason is given.
        NotAllowed: The settings of the registry do not let this author restore versions.
        IntegrityError: A blob is missing, such as weights that were collected.
        VersionUntrue: The number is too small a step among the versions published since.
        PolicyBroken: The version does not work with a part that a policy protects.
        PolicyUndecided: The version was not measured as a policy requires.
    """
    store.layout.check_writer(store.root)
    number = Version.parse(str(version))
    label = f"{name}@{number}"
    if not reason.strip():
        raise UsageError(f"Restoring {label} needs a reason; it is shown in the log.", subject=label)
    store.rules.check_author("maintainers", store.author, f"restore {label}", label)
    digest = store.references.digest(name, number)
    if digest is None:
        store.resolve(Reference(name, number))  # raises with similar names
    if store.references.tombstone(name, number) is None:
        raise NotFound(f"{label} is not withdrawn.", subject=label)
    reference = Reference(name, number, digest=digest)
    required = RequiredBlobs(store.objects, store.id, {}, label, store.manifest(str(digest)))
    required.retain()
    admission = Admission(store, [reference], store.objects.retain, policy_checks, unmeasured, restoring=True)
    for error in admission.check_all(lambda done, total, what: None).values():
        raise error

    def create(check: Callable[[], None]) -> bool:
        def ready() -> None:
            required.retain()
            check()

        return store.references.withdrawals(name).append(
            number, reason, restore=True, author=store.author, ready=ready
        )

    admission.link(reference, create)
