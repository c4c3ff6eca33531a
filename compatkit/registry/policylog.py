"""Policies on disk: each change of a scope's policy is an entry of its log, ``policies/<scope>@<n>``.

The last entry is in force. A version that is admitted without a measurement is recorded as an entry too, with the
unchanged policy. If the last entry is damaged, nothing in its scope can be published until the policy is set again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import FormatError, InvalidName, PolicyMoved
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.authorship import Author, author_in
from compatkit.registry.log import LIMIT, Log, names_in, now
from compatkit.registry.policies import Policy, from_bytes, to_bytes
from compatkit.registry.policy_scopes import (
    FOLDER,
    by_specificity,
    check_scope,
    file_name,
    matches,
    parse_file,
)
from compatkit.registry.settings import rules_of

if TYPE_CHECKING:
    from compatkit.registry.names import Reference


@attrs.frozen
class Revision:
    """Change of the policy of a scope.

    Attributes:
        scope: Component name, or glob over full names.
        number: Number in the log of the scope, from 1.
        policy: Policy after the change; None if it was cleared.
        time: Time of the change, UTC, ISO 8601.
        admitted: Version ``name@version`` that was admitted without a measurement; empty for other changes.
        by: Author: key or user; empty if not recorded.
        commit: Git commit of the author's folder; empty if not recorded.
    """

    scope: str
    number: int
    policy: Policy | None
    time: str
    admitted: str = ""
    by: str = ""
    commit: str = ""


@attrs.frozen(eq=False)
class PolicyLog:
    """Policies of a registry, with their history.

    Attributes:
        root: Folder of the registry.
    """

    root: Path

    def all(self) -> list[Revision]:
        """Return the policies in force, the most specific scope first.

        Raises:
            FormatError: A policy is damaged.
        """
        scopes = self._scopes()
        revisions = (self._last(scope, scopes[scope]) for scope in by_specificity(scopes))
        return [revision for revision in revisions if revision is not None and revision.policy is not None]

    def of(self, name: str) -> Revision | None:
        """Return the policy of the most specific scope that matches a name; None without a policy.

        Raises:
            FormatError: The policy is damaged; a damaged policy does not count as none.
        """
        scopes = self._scopes()
        for scope in by_specificity(pattern for pattern in scopes if matches(pattern, name)):
            revision = self._last(scope, scopes[scope])
            if revision is not None and revision.policy is not None:
                return revision
        return None

    def current(self, scope: str) -> Revision | None:
        """Return the last change of a scope's policy; None if there is none.

        Raises:
            InvalidName: The scope is not valid.
            FormatError: The last change is damaged.
        """
        scope = check_scope(scope)
        return self._last(scope, self._log(scope).numbers())

    def history(self, scope: str) -> list[Revision]:
        """Return all changes of a scope's policy, oldest first.

        Raises:
            InvalidName: The scope is not valid.
            FormatError: A change is damaged.
        """
        scope = check_scope(scope)
        revisions = (self._read(scope, number) for number in self._log(scope).numbers())
        return [revision for revision in revisions if revision is not None]

    def admitted(self, name: str) -> set[str]:
        """Return the versions ``name@version`` admitted without a measurement; damaged entries are skipped."""
        admitted: set[str] = set()
        for scope, numbers in self._scopes().items():
            for number in numbers if matches(scope, name) else ():
                try:
                    revision = self._read(scope, number)
                except FormatError:
                    continue
                admitted |= {revision.admitted} if revision is not None and revision.admitted else set()
        return {version for version in admitted if version.rpartition("@")[0] == name}

    def set(
        self,
        scope: str,
        policy: Policy | None,
        *,
        expected: int | Policy | Anything | None = ANY,
        author: Author | None = None,
    ) -> Revision | None:
        """Change the policy of a scope, or clear it.

        Args:
            scope: Component name, or glob over full names.
            policy: New policy, with the same scope; None clears the policy, so that a wider scope counts again.
            expected: Current state that is required: number of a revision, policy, or None for no policy. ``ANY``
                sets the policy in any case, even if the current one is damaged.
            author: Author of the change; recorded, and signs it if there is a key.

        Returns:
            The revision now in force; None if there was nothing to clear.

        Raises:
            PolicyMoved: The current state is not the expected one: another process changed it.
            NotAllowed: The settings of the registry do not let this author change policies.
            EnvironmentFailure: Disk full, no write permission, ...; nothing changed.
        """
        scope = check_scope(scope)
        if policy is not None and policy.scope != scope:
            raise InvalidName(f"the policy is for {policy.scope!r}, not for {scope!r}.", subject=scope)
        author = self._allowed(author, f"change the policy of {scope}", scope)
        current: Revision | None = None
        time, fields = now(), author.fields()

        def change(numbers: Sequence[int]) -> bytes | None:
            nonlocal current
            damaged = False
            try:
                current = self._last(scope, numbers)
            except FormatError:
                current, damaged = None, True
            if expected is not ANY:
                _check_expected(scope, current, expected)
            unchanged = not damaged and (current.policy if current is not None else None) == policy
            return None if unchanged else to_bytes(policy, time, author=fields)

        number = self._log(scope).append(change, author.signer(self.root))
        return (
            current if number is None else Revision(scope, number, policy, time, "", author.by, author.commit)
        )

    def _allowed(self, author: Author | None, action: str, scope: str) -> Author:
        """Return the author if the settings of the registry let them change policies."""
        author = author or Author.of()
        rules_of(self.root).check_author("maintainers", author, action, scope)
        return author

    def admit(self, scope: str, reference: Reference, author: Author | None = None) -> Revision:
        """Record that a version is admitted without the measurement that a policy requires.

        Args:
            scope: Scope of the policy.
            reference: Name and version to admit.
            author: Same as for ``set``.

        Raises:
            NotAllowed: The settings of the registry do not let this author admit versions.
            FormatError: The policy is damaged.
            EnvironmentFailure: Disk full, no write permission, ...; nothing is written.
        """
        scope, admitted, time = check_scope(scope), f"{reference.name}@{reference.version}", now()
        author = self._allowed(author, f"admit {admitted} without a measurement", scope)
        policy: Policy | None = None

        def change(numbers: Sequence[int]) -> bytes:
            nonlocal policy
            current = self._last(scope, numbers)
            policy = current.policy if current is not None else None
            return to_bytes(policy, time, admitted, author.fields())

        number = self._log(scope).append(change, author.signer(self.root))
        return Revision(scope, number or 0, policy, time, admitted, author.by, author.commit)

    def _log(self, scope: str) -> Log:
        return Log(self.root, self.root / FOLDER, file_name(scope, ""))

    def _scopes(self) -> dict[str, list[int]]:
        """Return the numbers of all changes by scope, in ascending order; other files are ignored."""
        scopes: dict[str, list[int]] = {}
        for name in names_in(self.root / FOLDER, self.root):
            if (parsed := parse_file(name)) is not None:
                scopes.setdefault(parsed[0], []).append(parsed[1])
        return {scope: sorted(numbers) for scope, numbers in scopes.items()}

    def _last(self, scope: str, numbers: Sequence[int]) -> Revision | None:
        revisions = (self._read(scope, number) for number in reversed(numbers))
        return next((revision for revision in revisions if revision is not None), None)

    def _read(self, scope: str, number: int) -> Revision | None:
        """Return a change; None if its file is missing."""
        log = self._log(scope)
        data = log.read(number)
        if data is None:
            return None
        try:
            return parse_revision(data, scope, number)
        except FormatError as error:
            path = log.path(number)
            raise FormatError(
                f"{path} holds no policy of {scope!r}: {error} Nothing in this scope is published until the policy is "
                f"set again (`compatkit policy set {scope}`) or the file is restored from a copy of the registry "
                "(`compatkit verify --repair --from ROOT`).",
                subject=path,
            ) from error


def _check_expected(scope: str, current: Revision | None, expected: int | Policy | Anything | None) -> None:
    """Raise unless the current revision is the expected one."""
    number = current.number if current is not None else 0
    policy = current.policy if current is not None else None
    if (number if type(expected) is int else policy) != expected:
        wanted = f"revision {expected}" if type(expected) is int else (expected or "no policy")
        actual = f"revision {number}, {policy}" if policy is not None else "no policy"
        raise PolicyMoved(
            f"the policy of {scope!r} should be {wanted}, but is {actual}: another process changed it. See "
            f"`compatkit policy show {scope}`, and state the new expected policy.",
            subject=scope,
        )


def parse_revision(content: bytes, scope: str, number: int) -> Revision:
    """Return the change stored in a file.

    An empty file is an error, because without it an older policy, or none, would silently be in force.

    Args:
        content: Content of the file.
        scope: Scope in the file name.
        number: Number in the file name.

    Raises:
        FormatError: The content is not a change, or is for another scope.
    """
    if not content:
        raise FormatError("the file is empty: writing it was interrupted.")
    if len(content) > LIMIT:
        raise FormatError(f"the file has more than {LIMIT} bytes.")
    policy, time, admitted, author = from_bytes(content, what="policy")
    if policy is not None and policy.scope != scope:
        raise FormatError(f"the policy is for the scope {policy.scope!r}.")
    return Revision(scope, number, policy, time, admitted, *author_in(author))
