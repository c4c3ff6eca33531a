"""A registry as a container of components, and what may change about a version once it is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from compatkit.components.workspace.building import Building
from compatkit.contracts.display import LINES, Shown
from compatkit.errors import CompatkitError, InvalidName, NotFound, UsageError
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.names import Reference

if TYPE_CHECKING:
    from compatkit.components.workspace.component import Component


class Containing(Shown, Building):
    """Names to components, as a mapping."""

    def __iter__(self) -> Iterator[str]:
        """Yield the names that have a version which is not withdrawn, sorted; damaged components are passed over."""
        return (one.name for one in self.store.index.search(latest=True))

    def __len__(self) -> int:
        """Return how many names ``iter`` yields."""
        return self.store.index.count(latest=True)

    def __contains__(self, reference: object) -> bool:
        """Tell whether a reference leads to a component: a name, with a version, range or alias if need be."""
        try:
            return isinstance(reference, str) and bool(self.store.resolve(reference))
        except (NotFound, InvalidName):
            return False

    def __getitem__(self, reference: str) -> Component:
        """Return the component that a reference leads to; reads no weights.

        Raises:
            NotFound: No such name, version or alias, or the version was withdrawn.
            InvalidName: Not written as a reference.
            IntegrityError: Its manifest is missing or damaged.
        """
        from compatkit.components.workspace.component import Component

        found = self.store.resolve(reference)
        return Component(self, found, self.store.manifest(found))

    def get(self, reference: str) -> Component | None:
        """Return what ``registry[reference]`` does, None where there is nothing."""
        return self[reference] if reference in self else None

    load = Building.build

    def versions(self, name: str) -> list[str]:
        """Return the versions of a name, rising, without withdrawn ones.

        Raises:
            NotFound: No such name.
        """
        return [str(one) for one in self.store.versions(name)]

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version that each alias of a name points at.

        Raises:
            NotFound: No such name.
        """
        self.store.versions(name)
        return self.store.aliases(name)

    def alias(
        self, name: str, alias: str, version: str | None, *, expected: str | Anything | None = ANY
    ) -> None:
        """Point an alias at a version, or remove it with None; the move is kept in the component's log.

        After ``registry.alias("digits/mnist.head", "prod", "1.2.0")`` that version is ``"digits/mnist.head:prod"``.

        Args:
            name: Of the component.
            alias: One segment, ``"prod"``.
            version: A version that is not withdrawn.
            expected: Version that it must point at now, None if it must not exist; by default it is moved in any case,
                which may undo somebody else's move.

        Raises:
            AliasMoved: It points elsewhere than expected.
            NotFound: No such name or version.
        """
        self.store.versions(name)
        self.store.set_alias(name, alias, version, expected=expected)

    def withdraw(self, reference: str, *, reason: str) -> None:
        """Withdraw a version: only its digest finds it any more, and its number is never used again.

        Args:
            reference: With its version: ``"digits/mnist.head@1.1.0"``.
            reason: Shown to everybody who asks for this version.

        Raises:
            NotFound: No such version.
            UsageError: No version is named, or no reason given.
        """
        wanted = Reference.parse(reference)
        if wanted.version is None:
            raise UsageError(
                f"Name the version to withdraw, such as {wanted.name}@1.2.0; got {reference!r}.",
                subject=reference,
            )
        self.store.withdraw(wanted.name, wanted.version, reason)

    def _told(self) -> str:
        """Return where it is and what is in it: the first names with their latest versions."""
        where = f"Registry({str(self.store.root)!r})"
        try:
            count = len(self)
            shown = self.search(latest=True, limit=LINES - 10)
        except CompatkitError as error:  # a value that cannot be read is still shown
            return f"{where}: {error}"
        more = [f"... and {count - len(shown):,} more names"] if count > len(shown) else []
        return "\n".join(
            [f"{where}: {count:,} component{'' if count == 1 else 's'}", *str(shown).split("\n"), *more]
        )
