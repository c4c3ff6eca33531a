"""Registry methods that change names: aliases, withdrawals, version numbers; and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compatkit.errors import UsageError
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.names import Reference, Version
from compatkit.registry.settings import RegistrySettings, change_settings
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData


class Changing:
    """Registry methods that change names, and the settings.

    Attributes:
        store: Files of the registry.
    """

    store: Store

    def alias(
        self,
        name: str,
        alias: str,
        version: str | None,
        *,
        expected: str | Anything | None = ANY,
    ) -> None:
        """Point an alias to a version, or remove it with None; moves are recorded in the component's log.

        After ``registry.alias("digits/mnist.head", "prod", "1.2.0")`` that version is ``"digits/mnist.head:prod"``.

        Args:
            name: Name of the component.
            alias: One segment, such as ``"prod"``.
            version: A version that is not withdrawn.
            expected: Version that it must point to now, None if it must not exist (compare-and-swap); by default it is
                moved unconditionally, which may undo a concurrent move.

        Raises:
            AliasMoved: It does not point to ``expected``.
            NotFound: No such name or version.
        """
        self.store.versions(name)
        self.store.set_alias(name, alias, version, expected=expected)

    def withdraw(self, reference: str, *, reason: str) -> None:
        """Withdraw a version: only its digest finds it afterwards, and its number is never reused.

        Args:
            reference: Reference with a version: ``"digits/mnist.head@1.1.0"``.
            reason: Shown to everybody who requests this version.

        Raises:
            NotFound: No such version.
            UsageError: No version is named, or no reason is given.
        """
        name, version = numbered(reference, "withdraw")
        self.store.withdraw(name, version, reason)

    def restore(
        self,
        reference: str,
        *,
        reason: str,
        measure: bool = False,
        data: PolicyData = (),
        unmeasured: bool = False,
    ) -> None:
        """Take the withdrawal of a version back; the log keeps both.

        Args:
            reference: Reference with a version: ``"digits/mnist.head@1.1.0"``.
            reason: Shown in the log.
            measure: Measure what policies require and evidence does not decide.
            data: Images to measure on.
            unmeasured: Accept a version without the measurements that a policy requires; its log records that.

        Raises:
            NotFound: There is no such version, or it is not withdrawn.
            UsageError: No version is named, or no reason is given.
            IntegrityError: A blob of the version is missing, such as weights that were collected.
            VersionUntrue: The number is too small a step among the versions published since.
            PolicyBroken: The version does not work with a part that a policy protects.
            PolicyUndecided: The version was not measured as a policy requires.
        """
        from compatkit.components.policy_checks import policy_checks
        from compatkit.registry.restoring import restore

        name, version = numbered(reference, "restore")
        checks = policy_checks(measure=measure, data=data)
        restore(
            self.store,
            name,
            version,
            reason,
            policy_checks=checks,
            unmeasured=unmeasured,
        )

    def drop(self, reference: str, *, reason: str) -> str:
        """Free a version number that another registry uses for another component; nothing is lost.

        The component must have another name or number here: see ``copy``. Afterwards ``pull`` brings the other
        registry's version of this number.

        Args:
            reference: Reference with a version: ``"digits/mnist.head@1.0.0"``.
            reason: Shown to everybody who requests this version.

        Returns:
            The pinned reference under which the component is kept.

        Raises:
            NotFound: No such version.
            UsageError: No version is named, or no reason is given; or the number must stay: it was withdrawn, an alias
                points to it, a policy relies on it, or the component has no other name or number.
            EnvironmentFailure: Disk full, or no write permission; the version is still there.
        """
        from compatkit.registry.dropping import drop

        return drop(self.store, reference, reason).kept

    @property
    def settings(self) -> RegistrySettings:
        """Settings in force: which signatures are required, and which keys may do what."""
        return self.store.rules.settings

    def change_settings(self, **changes: Any) -> RegistrySettings:
        """Change settings; once there are owners, the key of ``open`` must be one of them.

        Args:
            **changes: New values of fields of ``settings``, such as ``protected_aliases=("prod",)``; the others stay.

        Returns:
            The settings in force.

        Raises:
            NotAllowed: The key is not an owner's; or there would be owners, and none of them signs.
            UsageError: A field is unknown or has no valid value.
            EnvironmentFailure: Disk full, no permission to write; nothing changed.
        """
        self.store.layout.check_writer(self.store.root)
        return change_settings(self.store.root, self.store.author, **changes).settings


def numbered(reference: str, verb: str) -> tuple[str, Version]:
    """Return name and version of a reference that must name one version.

    Args:
        reference: Reference, such as ``"digits/mnist.head@1.1.0"``.
        verb: Verb for the message, such as ``"withdraw"``.

    Raises:
        UsageError: No version is named.
    """
    wanted = Reference.parse(reference)
    if wanted.version is None:
        raise UsageError(
            f"Name the version to {verb}, such as {wanted.name}@1.2.0; got {reference!r}.", subject=reference
        )
    return wanted.name, wanted.version
