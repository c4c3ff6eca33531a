"""Aliases as they are found: the pointer against the log of its moves, and what both point at."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from compatkit.errors import InvalidName
from compatkit.registry.aliases import Move
from compatkit.registry.names import Version
from compatkit.registry.verify.faults import shown
from compatkit.registry.verify.pointers import read_json, small_file
from compatkit.registry.verify.survey import Survey

_NUMBER = re.compile("[0-9]{1,18}")


def read_move(content: bytes, number: int) -> Move | None:
    """Return what an entry of an alias's log says; None if it is damaged."""
    value = read_json(content)
    if not isinstance(value, dict) or not {"from", "to", "time"} <= value.keys():
        return None
    if not all(value[key] is None or _is_version(value[key]) for key in ("from", "to")):
        return None
    return Move(number, value["from"], value["to"], str(value["time"]))


def read_pointer(content: bytes) -> tuple[str, int] | None:
    """Return version and number of an alias's pointer, 0 where it has no number; None if it is damaged."""
    words = content.decode("ascii", "replace").split()
    if not 1 <= len(words) <= 2 or not _is_version(words[0]):
        return None
    number = words[1] if len(words) == 2 else "0"
    return (words[0], int(number)) if _NUMBER.fullmatch(number) else None


def check_aliases(survey: Survey, wanted: Callable[[str], bool]) -> None:
    """Report aliases that cannot be read, contradict their logs, or point at nothing; and gaps in logs."""
    for name in survey.names():
        if wanted(name):
            logs = survey.logs.get(name, {})
            for alias in sorted({*survey.aliases.get(name, ()), *logs}):
                _check_alias(survey, name, alias, logs.get(alias, []))


def _check_alias(survey: Survey, name: str, alias: str, numbers: list[int]) -> None:
    path, whose = f"refs/{name}/@aliases/{alias}", (f"{name}:{alias}",)
    moves = _check_log(survey, name, alias, numbers)
    whole, last = numbers == list(range(1, len(moves) + 1)), numbers[-1] if numbers else 0
    version, number = None, 0
    if alias in survey.aliases.get(name, ()):
        content = small_file(survey, path, whose)
        if content is None:
            return
        pointer = read_pointer(content)
        if pointer is None:
            what = f"expected a version and the number of its move, such as '1.2.0 3', got {shown(content)}"
            survey.findings.add("alias-damaged", path, what, whose)
            return
        version, number = pointer
    if number in moves and moves[number].after != version:
        what = f"the pointer says {version}, move {number} of its log says {moves[number].after or 'nothing'}"
        survey.findings.add("alias-damaged", path, what, whose)
        return
    if survey.is_hidden(f"refs/{name}/@log/{alias}") or survey.is_hidden(f"refs/{name}/@aliases"):
        return
    if number > last:
        if survey.is_there(f"refs/{name}/@log/{alias}/{number}"):
            return  # somebody moved it since the folder was listed
        what = f"the pointer names move {number}, the log ends with {last}"
        survey.findings.add("alias-log-gap", f"refs/{name}/@log/{alias}", what, whose)
    elif whole and number < last and (version or moves[last].after):
        survey.findings.add(
            "alias-behind", path, f"the pointer is of move {number}, the log ends with {last}", whose
        )
    if whole and number <= last and last:
        version = moves[last].after
    if version is not None and whole:
        _check_target(survey, name, alias, Version.parse(version))


def _check_log(survey: Survey, name: str, alias: str, numbers: list[int]) -> dict[int, Move]:
    """Return the moves that can be read, by number."""
    moves: dict[int, Move] = {}
    whose, reached = (f"{name}:{alias}",), 0
    for number in numbers:
        if number > reached + 1 and not survey.is_there(f"refs/{name}/@log/{alias}/{reached + 1}"):
            missing = f"{reached + 1}" if number == reached + 2 else f"{reached + 1} to {number - 1}"
            what = f"move {missing} is not there, move {number} is: readers may stop before it"
            survey.findings.add("alias-log-gap", f"refs/{name}/@log/{alias}", what, whose)
        reached = number
        path = f"refs/{name}/@log/{alias}/{number}"
        content = small_file(survey, path, whose)
        if content is None:
            continue
        move = read_move(content, number)
        if move is None:
            what = f"expected an object with from, to and time, got {shown(content)}"
            survey.findings.add("alias-log-damaged", path, what, whose)
        else:
            moves[number] = move
    return moves


def _check_target(survey: Survey, name: str, alias: str, version: Version) -> None:
    path, whose = f"refs/{name}/@aliases/{alias}", (f"{name}:{alias}",)
    if survey.is_hidden(f"refs/{name}/@versions"):
        return
    there = version in survey.versions.get(name, ()) or survey.is_there(f"refs/{name}/@versions/{version}")
    if not there:
        what = f"it points at {version}, which {name} does not have"
        survey.findings.add("alias-dangling", path, what, whose)
    elif version in survey.tombstones.get(name, ()):
        survey.findings.add("alias-withdrawn", path, f"it points at {version}, which was withdrawn", whose)


def _is_version(text: Any) -> bool:
    try:
        return bool(Version.parse(text))
    except InvalidName:
        return False
