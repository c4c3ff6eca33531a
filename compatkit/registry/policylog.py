"""Policies on disk: each change of a scope's policy is an entry of its log, ``policies/<scope>@<n>``.

The last entry holds. A version that came in unmeasured is an entry too, with the policy as it was. A damaged last entry
lets nothing in its scope be published until the policy is set again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs

from compatkit.errors import FormatError, InvalidName, PolicyMoved
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.log import Log, names_in
from compatkit.registry.names import Reference
from compatkit.registry.policies import Policy, by_specificity, check_scope, from_bytes, matches, to_bytes
from compatkit.registry.refs import LIMIT, now

FOLDER = "policies"
_FILE = re.compile(r"([^@]+)@([1-9][0-9]{0,8})")
_ESCAPES = {"/": "%2f", "*": "%2a", "?": "%3f"}


@attrs.frozen
class Revision:
    """One change of the policy of a scope. Its author is not known: anybody who may write could have made it.

    Attributes:
        number: Counted from 1.
        policy: The policy that holds since; None if it was cleared.
        time: UTC, ISO 8601.
        admitted: The version that came in unmeasured, ``name@version``, if that was the change; else empty.
    """

    scope: str
    number: int
    policy: Policy | None
    time: str
    admitted: str = ""


@attrs.frozen(eq=False)
class PolicyLog:
    """The policies of one registry.

    Attributes:
        root: Of the registry.
    """

    root: Path

    def all(self) -> list[Revision]:
        """Return the policies that hold, the most specific scope first.

        Raises:
            FormatError: A policy is damaged.
        """
        scopes = self._scopes()
        revisions = (self._last(scope, scopes[scope]) for scope in by_specificity(scopes))
        return [revision for revision in revisions if revision is not None and revision.policy is not None]

    def of(self, name: str) -> Revision | None:
        """Return the policy that binds a name, that of the most specific matching scope; None if no policy does.

        Raises:
            FormatError: It is damaged; publishing must not go on as if no policy held.
        """
        scopes = self._scopes()
        for scope in by_specificity(pattern for pattern in scopes if matches(pattern, name)):
            revision = self._last(scope, scopes[scope])
            if revision is not None and revision.policy is not None:
                return revision
        return None

    def current(self, scope: str) -> Revision | None:
        """Return the last change of a scope's policy, None if it never had one.

        Raises:
            InvalidName: The scope is not valid.
            FormatError: It is damaged.
        """
        scope = check_scope(scope)
        return self._last(scope, self._log(scope).numbers())

    def history(self, scope: str) -> list[Revision]:
        """Return every change of a scope's policy, oldest first.

        Raises:
            InvalidName: The scope is not valid.
            FormatError: One is damaged.
        """
        scope = check_scope(scope)
        revisions = (self._read(scope, number) for number in self._log(scope).numbers())
        return [revision for revision in revisions if revision is not None]

    def admitted(self, name: str) -> set[str]:
        """Return the versions of a name, ``name@version``, that came in unmeasured; damaged entries are passed over."""
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
        self, scope: str, policy: Policy | None, *, expected: int | Policy | Anything | None = ANY
    ) -> Revision | None:
        """Change the policy of a scope, or clear it.

        Args:
            scope: A name or glob.
            policy: The new policy, of the same scope; None clears it, so that a wider scope counts again.
            expected: What must hold now: a revision's number, a policy, None for no policy; ``ANY`` sets it in any
                case, even over a damaged one.

        Returns:
            The revision that holds now; None if there was nothing to clear.

        Raises:
            PolicyMoved: Something else holds than expected: another process changed it.
            EnvironmentFailure: Disk full, no right to write, ...; nothing changed.
        """
        scope = check_scope(scope)
        if policy is not None and policy.scope != scope:
            raise InvalidName(f"the policy is for {policy.scope!r}, not for {scope!r}.", subject=scope)
        current: Revision | None = None
        when = now()

        def change(numbers: Sequence[int]) -> bytes | None:
            nonlocal current
            damaged = False
            try:
                current = self._last(scope, numbers)
            except FormatError:
                current, damaged = None, True
            if expected is not ANY:
                _compare(scope, current, expected)
            same = not damaged and (current.policy if current is not None else None) == policy
            return None if same else to_bytes(policy, when)

        number = self._log(scope).append(change)
        return current if number is None else Revision(scope, number, policy, when)

    def admit(self, scope: str, reference: Reference) -> Revision:
        """Record that a version comes in without the measurement that the policy of a scope asks for.

        Args:
            scope: Of the policy.
            reference: Name and version that come in.

        Raises:
            FormatError: The policy is damaged.
            EnvironmentFailure: Disk full, no right to write, ...; nothing is written.
        """
        scope, admitted, when = check_scope(scope), f"{reference.name}@{reference.version}", now()
        policy: Policy | None = None

        def change(numbers: Sequence[int]) -> bytes:
            nonlocal policy
            current = self._last(scope, numbers)
            policy = current.policy if current is not None else None
            return to_bytes(policy, when, admitted)

        number = self._log(scope).append(change)
        return Revision(scope, number or 0, policy, when, admitted)

    def _log(self, scope: str) -> Log:
        return Log(self.root, self.root / FOLDER, file_name(scope, ""))

    def _scopes(self) -> dict[str, list[int]]:
        """Return the numbers of all changes, rising, by scope; foreign files are ignored."""
        scopes: dict[str, list[int]] = {}
        for name in names_in(self.root / FOLDER, self.root):
            if (parsed := parse_file(name)) is not None:
                scopes.setdefault(parsed[0], []).append(parsed[1])
        return {scope: sorted(numbers) for scope, numbers in scopes.items()}

    def _last(self, scope: str, numbers: Sequence[int]) -> Revision | None:
        revisions = (self._read(scope, number) for number in reversed(numbers))
        return next((revision for revision in revisions if revision is not None), None)

    def _read(self, scope: str, number: int) -> Revision | None:
        """Return one change; None where its file is gone at this moment."""
        log = self._log(scope)
        data = log.read(number)
        if data is None:
            return None
        try:
            return understood(data, scope, number)
        except FormatError as error:
            path = log.path(number)
            raise FormatError(
                f"{path} holds no policy of {scope!r}: {error} Nothing in this scope is published until the policy is "
                f"set again (`compatkit policy set {scope}`), or the file is restored from a copy of the registry "
                "(`compatkit verify --repair --from ROOT`).",
                subject=path,
            ) from error


def _compare(scope: str, current: Revision | None, expected: int | Policy | Anything | None) -> None:
    number = current.number if current is not None else 0
    policy = current.policy if current is not None else None
    if (number if type(expected) is int else policy) != expected:
        wanted = f"revision {expected}" if type(expected) is int else (expected or "no policy")
        actual = f"revision {number}, {policy}" if policy is not None else "no policy"
        raise PolicyMoved(
            f"the policy of {scope!r} should be {wanted}, but is {actual}: somebody changed it. Look again with "
            f"`compatkit policy show {scope}`, and state what you expect now.",
            subject=scope,
        )


def file_name(scope: str, number: int | str) -> str:
    """Return the name of the file of a change.

    Args:
        scope: A name or glob.
        number: Of the change; empty for what the names of all changes begin with.
    """
    return f"{_encoded(scope)}@{number}"


def parse_file(name: str) -> tuple[str, int] | None:
    """Return scope and number from a file's name; None for a foreign file."""
    match = _FILE.fullmatch(name)
    scope = _decoded(match[1]) if match is not None else None
    return None if match is None or scope is None else (scope, int(match[2]))


def understood(content: bytes, scope: str, number: int) -> Revision:
    """Return the change in a file's content.

    An empty file is damage too: ignoring it would silently let an older policy, or none, bind.

    Args:
        content: Of the file.
        scope: That the file's name states.
        number: That the file's name states.

    Raises:
        FormatError: It is no change, or one of another scope.
    """
    if not content:
        raise FormatError("it is empty: its writing was cut off.")
    if len(content) > LIMIT:
        raise FormatError(f"more than {LIMIT} bytes.")
    policy, when, admitted = from_bytes(content, what="policy")
    if policy is not None and policy.scope != scope:
        raise FormatError(f"it is for the scope {policy.scope!r}.")
    return Revision(scope, number, policy, when, admitted)


def _encoded(scope: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in scope)


def _decoded(text: str) -> str | None:
    """Return the scope in a file's name; None for a foreign file."""
    plain = text
    for character, escaped in _ESCAPES.items():
        plain = plain.replace(escaped, character)
    try:
        scope = check_scope(plain)
    except InvalidName:
        return None
    return scope if _encoded(scope) == text else None
