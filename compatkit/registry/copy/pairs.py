"""Copying measured results: of the pairs whose parts both come along, with whatever the results refer to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from compatkit.errors import CompatkitError, IntegrityError
from compatkit.registry.copy.bringing import Bringing
from compatkit.registry.copy.closure import Part
from compatkit.registry.copy.places import Note, Source
from compatkit.registry.evidence import FOLDER

_HEXADECIMAL = re.compile("[0-9a-f]{64}")


def pointers(source: Source, functions: Iterable[str]) -> list[str]:
    """Return the paths, relative to the registry, of the files that point at results of pairs of ``functions``."""
    known = {one.rpartition(":")[2] for one in functions}
    found: list[str] = []
    for path in source.notes([f"{FOLDER}/{one}" for one in sorted(known)]):
        parts = path.split("/")
        if len(parts) == 5 and known.issuperset(parts[1:3]) and all(map(_HEXADECIMAL.fullmatch, parts[3:])):
            found.append(path)
    return found


def pointed(source: Source, path: str, content: bytes | None) -> str:
    """Return the digest of the result that a file points at.

    Raises:
        IntegrityError: It does not hold the digest that it is named by.
    """
    digest = f"sha256:{path.rpartition('/')[2]}"
    if content != f"{digest}\n".encode():
        raise IntegrityError(
            f"{source.where}/{path} should hold the digest that it is named by, got {content or b''!r:.80}. "
            f"{source.advice} Or leave the results behind.",
            subject=path,
        )
    return digest


def move_results(
    bringing: Bringing,
    functions: Iterable[str],
    refuse: Callable[[str, CompatkitError], None],
    *,
    anew: bool,
) -> int:
    """Move the results of every pair of parts, several at once; return how many are new there.

    Args:
        bringing: The move.
        functions: Function digests of the parts.
        refuse: Is told the path of a result that is damaged, and why; the others move.
        anew: See that what results refer to is there and good, also where the target has the result already.

    Raises:
        EnvironmentFailure: The surroundings failed.
    """
    source, target, closure = bringing.source, bringing.target, bringing.closure
    functions = list(functions)
    there = set() if anew else set(pointers(target, functions))
    digests: dict[str, str] = {}
    for path, content in source.read_notes([one for one in pointers(source, functions) if one not in there]):
        try:
            digests[path] = pointed(source, path, content)
        except CompatkitError as error:
            refuse(path, error)
    closure.take([(one, Part("blob", None, f"the result {path}")) for path, one in digests.items()])
    held: dict[str, list[str]] = {}
    for path, digest in digests.items():
        try:
            held[path] = closure.of(digest)
        except CompatkitError as error:
            refuse(path, error)
    needed = dict.fromkeys(part for one in held.values() for part in one)
    failed = bringing.bring(list(needed) if anew else bringing.lacking(needed))
    notes: list[Note] = []
    for path, needs in held.items():
        wrong = next((failed[one] for one in needs if one in failed), None)
        if wrong is not None:
            refuse(path, wrong)
            continue
        line = f"{digests[path]}\n".encode()
        notes.append(Note(path, line, lambda needs=needs: [closure.bring(one) for one in needs]))
    return len(notes) - len(target.create(notes))
