"""The graph of a registry: what a document names, and the walk from roots to everything that they lead to.

A document is a blob that names others, such as a manifest, a result, or the record of a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

from compatkit.errors import FormatError
from compatkit.foundation.codec import is_digest, loads

How = Literal["payload", "blob", "component", "named"]
"""How a document names a digest: as weights, which are never read; as another blob; as a component; anywhere else."""
NamedDigest = tuple[str, How]
T = TypeVar("T")


class DocumentEdge(NamedTuple):
    """A blob or component that belongs to a document.

    Attributes:
        key: ``blob`` or ``component``.
        digest: Of the bytes.
        size: Number of bytes, if the document states it.
    """

    key: str
    digest: str
    size: int | None


_NAMED = re.compile(rb'"(sha256:[0-9a-f]{64})"')
_WEIGHTS = re.compile(rb'"payload":\{"count":\d+,"file":\{"blob":')
_ORDER: tuple[How, ...] = ("named", "payload", "blob", "component")


def names(data: bytes, digest: str, *, component: bool) -> tuple[NamedDigest, ...]:
    """Return the digests in a document, each once with the strongest way it is named; nothing if it is no document.

    Canonical JSON is searched for digests, which finds at least its edges in a tenth of the time; any other document is
    read strictly.

    Args:
        data: A blob's bytes.
        digest: Their digest, for messages.
        component: Whether it must be a document.

    Raises:
        FormatError: It must be a document, and is no strict JSON.
    """
    if data.find(b"}\n") != len(data) - 2 or _is_unusual(data):
        return tuple(_walked(_value(data, digest, component)).items())
    weights = _WEIGHTS.search(data)
    digests: dict[str, How] = {}
    for match in _NAMED.finditer(data):
        start = match.start()
        how: How = "named"
        if data.endswith(b'"component":', 0, start):
            how = "component"
        elif data.endswith(b'"blob":', 0, start):
            how = "payload" if weights is not None and weights.end() == start else "blob"
        target = match[1].decode()
        if digests.setdefault(target, how) != how:
            _keep(digests, target, how)
    return tuple(digests.items())


def _is_unusual(data: bytes) -> bool:
    """Return whether there are escapes or blanks between the parts, so that it has to be read as JSON."""
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
    """Return the digests in JSON values."""
    digests: dict[str, How] = {}
    ahead: list[tuple[Any, Any]] = [(None, value)]
    while ahead:
        key, node = ahead.pop()
        if isinstance(node, str):
            if is_digest(node):
                _keep(digests, node, key if key in ("blob", "component") else "named")
        elif isinstance(node, dict):
            ahead.extend(node.items())
            ahead.extend((None, name) for name in node)
        elif isinstance(node, list):
            ahead.extend((None, item) for item in node)
    return digests


def _keep(digests: dict[str, How], digest: str, how: How) -> None:
    before = digests.setdefault(digest, how)
    if before != how and _ORDER.index(how) > _ORDER.index(before):
        digests[digest] = how


def edges(value: Any) -> Iterator[DocumentEdge]:
    """Yield every edge in JSON values.

    Unlike ``manifest.edges`` it skips what is malformed, so that a document that is refused, or that a newer version
    wrote, still shows what it keeps.
    """
    ahead: list[Any] = [value]
    while ahead:
        node = ahead.pop()
        if isinstance(node, dict):
            for key in ("blob", "component"):
                edge = node.get(key)
                if isinstance(edge, str) and is_digest(edge):
                    size = node.get("bytes") if key == "blob" else None
                    yield DocumentEdge(key, edge, size if type(size) is int else None)
            node = node.values()
        elif not isinstance(node, list):
            continue
        ahead += [each for each in node if type(each) in (dict, list)]


def walk(
    starts: Iterable[T],
    further: Callable[[T], Iterable[T]],
    *,
    key: Callable[[T], Hashable] = lambda step: step,
    rank: Callable[[T], Any] = lambda step: 0,
) -> Iterator[T]:
    """Yield everything that can be reached, depth first: each node once, and again when it is reached at a higher rank.

    Args:
        starts: Steps to the roots.
        further: Returns the steps from the node that a step leads to; called after the step was yielded.
        key: Which node a step leads to; without one, the step is the node.
        rank: How strongly a step reaches its node: living before withdrawn, needed before mentioned.
    """
    best: dict[Hashable, Any] = {}
    for start in starts:
        ahead = [start]
        while ahead:
            step = ahead.pop()
            node, strength = key(step), rank(step)
            if node not in best or best[node] < strength:
                best[node] = strength
                yield step
                ahead.extend(further(step))
