"""Copying measured results: of the pairs whose parts both come along, with whatever the results refer to."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from compatkit.errors import IntegrityError
from compatkit.registry import durable
from compatkit.registry.copying.closure import Closure
from compatkit.registry.evidence import FOLDER
from compatkit.registry.surroundings import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store

_HEXADECIMAL = re.compile("[0-9a-f]{64}")


def copy_results(
    source: Store, target: Store, closure: Closure, progress: Callable[[int, int, str], None]
) -> int:
    """Copy the results of every pair of components in ``closure``; return how many are new.

    Raises:
        IntegrityError: A pointer or result is damaged.
        EnvironmentFailure: Disk full, no right to write.
    """
    functions = closure.functions()
    known, made = set(functions), 0
    for place, extractor in enumerate(functions):
        progress(place, len(functions), "copying results")
        for head in sorted(source.evidence.partners(extractor) & known):
            for pointer in source.evidence.pointers(extractor, head):
                if _HEXADECIMAL.fullmatch(pointer.parent.name):
                    made += _copy(source, target, closure, pointer)
    return made


def _copy(source: Store, target: Store, closure: Closure, pointer: Path) -> bool:
    """Copy one result, and make its pointer last; False if it is here."""
    whose, line = f"the result {pointer}", f"sha256:{pointer.name}\n".encode()
    found = durable.read(pointer, source.root, limit=2 * len(line))
    if found is None or found[0] != line:
        raise IntegrityError(
            f"{pointer} should hold the digest that it is named by, got {b'' if found is None else found[0]!r:.80}. "
            f"Run `compatkit --registry {source.root} verify --repair` there, or import without results.",
            subject=pointer,
        )
    path = target.root / FOLDER / pointer.relative_to(source.root / FOLDER)
    parts = closure.document(f"sha256:{pointer.name}", whose)
    with environment("write", path):
        return durable.create_once(path, line, target.root, lambda: [closure.bring(part) for part in parts])
