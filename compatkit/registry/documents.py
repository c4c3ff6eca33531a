"""What a document names: a document is a blob that names others, such as a manifest, a result, or the record of a run.

One that is written as this program writes them is searched for digests, which finds at least its edges in a tenth of
the time; any other is read strictly.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from compatkit.contracts.codec import is_digest, loads
from compatkit.errors import FormatError

How = Literal["payload", "blob", "component", "named"]
"""How a digest is named: as weights, which are never looked into; as other bytes; as a component; in passing."""
Found = tuple[str, How]

_NAMED = re.compile(rb'"(sha256:[0-9a-f]{64})"')
_WEIGHTS = re.compile(rb'"payload":\{"count":\d+,"file":\{"blob":')
_ORDER: tuple[How, ...] = ("named", "payload", "blob", "component")


def names(data: bytes, digest: str, *, component: bool) -> tuple[Found, ...]:
    """Return what a document names, each digest once with the strongest way of naming it; nothing if it is none.

    Args:
        data: A blob's bytes.
        digest: Their digest, for messages.
        component: Whether it must be a document.

    Raises:
        FormatError: It is not written as this program writes documents, and is not strict JSON either.
    """
    if data.find(b"}\n") != len(data) - 2 or _is_unusual(data):
        return tuple(_walked(_value(data, digest, component)).items())
    weights = _WEIGHTS.search(data)
    found: dict[str, How] = {}
    for match in _NAMED.finditer(data):
        start = match.start()
        how: How = "named"
        if data.endswith(b'"component":', 0, start):
            how = "component"
        elif data.endswith(b'"blob":', 0, start):
            how = "payload" if weights is not None and weights.end() == start else "blob"
        named = match[1].decode()
        if found.setdefault(named, how) != how:
            _keep(found, named, how)
    return tuple(found.items())


def _is_unusual(data: bytes) -> bool:
    """Tell whether there are escapes, or blanks between the parts; these would have to be read as JSON."""
    return b"\\" in data or b'": ' in data or b'" :' in data or b"\t" in data or b"\r" in data


def _value(data: bytes, digest: str, component: bool) -> Any:
    if not component and not data.lstrip().startswith((b"{", b"[")):
        return None
    try:
        return loads(data, what=digest)
    except FormatError:
        if component:
            raise
        return None  # other bytes that begin like one


def _walked(value: Any) -> dict[str, How]:
    """Return what JSON values name, whatever their spelling."""
    found: dict[str, How] = {}
    ahead: list[tuple[Any, Any]] = [(None, value)]
    while ahead:
        key, one = ahead.pop()
        if isinstance(one, str):
            if is_digest(one):
                _keep(found, one, key if key in ("blob", "component") else "named")
        elif isinstance(one, dict):
            ahead.extend(one.items())
            ahead.extend((None, name) for name in one)
        elif isinstance(one, list):
            ahead.extend((None, item) for item in one)
    return found


def _keep(found: dict[str, How], digest: str, how: How) -> None:
    before = found.setdefault(digest, how)
    if before != how and _ORDER.index(how) > _ORDER.index(before):
        found[digest] = how
