"""Scopes of policies: names or globs over full names, their order, and their files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from compatkit.errors import InvalidName
from compatkit.registry.names import check_name

FOLDER = "policies"
_FILE = re.compile(r"([^@]+)@([1-9][0-9]{0,8})")
_ESCAPES = {"/": "%2f", "*": "%2a", "?": "%3f"}
MAX_LENGTH = 200
"""Maximum length of a scope: it is part of a file name, in which ``/``, ``*`` and ``?`` take three characters each."""
WILDCARDS = "*?"
_SCOPE = re.compile(
    r"[a-z0-9*?](?:[a-z0-9._*?-]*[a-z0-9*?])?(?:/[a-z0-9*?](?:[a-z0-9._*?-]*[a-z0-9*?])?){0,2}"
)


def check_scope(scope: str) -> str:
    """Return the stored form of a scope: ``digits/`` becomes ``digits/*``.

    Raises:
        InvalidName: ``scope`` is neither a component name nor a glob (``*``, ``?``) that could match one.
    """
    text = f"{scope}*" if isinstance(scope, str) and scope.endswith("/") else scope
    if isinstance(text, str) and not set(WILDCARDS) & set(text):
        return check_name(text)
    if not isinstance(text, str) or len(text) > MAX_LENGTH or ".." in text or not _SCOPE.fullmatch(text):
        raise InvalidName(
            f"scope {scope!r:.100} is not valid: give a component name such as 'digits/mnist.extractor', a prefix such "
            f"as 'digits/', or a glob of at most {MAX_LENGTH} characters such as 'digits/*.extractor'.",
            subject=scope,
        )
    return text


def matches(scope: str, name: str) -> bool:
    """Return whether a policy's scope matches the name of a component."""
    return scope == name or fnmatchcase(name, scope)


def by_specificity(scopes: Iterable[str]) -> list[str]:
    """Sort scopes, the most specific first.

    Names come before globs. Globs are sorted by the number of characters before the first wildcard (more first), the
    number of other characters (more first), the number of wildcards (fewer first), and the alphabet. There are no ties.
    """
    return sorted(scopes, key=_rank)


def _rank(scope: str) -> tuple[int, int, int, int, str]:
    literal = [character for character in scope if character not in WILDCARDS]
    wild = len(scope) - len(literal)
    first = next((position for position, character in enumerate(scope) if character in WILDCARDS), len(scope))
    return (1 if wild else 0, -first, -len(literal), wild, scope)


def file_name(scope: str, number: int | str) -> str:
    """Return the file name of a change.

    Args:
        scope: Component name, or glob over full names.
        number: Number of the change; empty for the common prefix of all changes.
    """
    return f"{_encoded(scope)}@{number}"


def parse_file(name: str) -> tuple[str, int] | None:
    """Return the scope and number in a file name; None for other files."""
    match = _FILE.fullmatch(name)
    scope = _decoded(match[1]) if match is not None else None
    return None if match is None or scope is None else (scope, int(match[2]))


def _encoded(scope: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in scope)


def _decoded(text: str) -> str | None:
    """Return the scope in a file name; None for other files."""
    plain = text
    for character, escaped in _ESCAPES.items():
        plain = plain.replace(escaped, character)
    try:
        scope = check_scope(plain)
    except InvalidName:
        return None
    return scope if _encoded(scope) == text else None
