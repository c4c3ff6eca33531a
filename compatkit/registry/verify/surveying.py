"""The walk through a registry's folders: the root, references, evidence and blobs, each as the layout has it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from compatkit.errors import InvalidName
from compatkit.registry.layout import FOLDERS, MARKER
from compatkit.registry.names import Version, check_alias, check_segment
from compatkit.registry.verify.survey import FOREIGN, Survey, odd_kind

HEXADECIMAL = re.compile("[0-9a-f]{64}")
ANY_DIGEST = re.compile("(?:sha256[:-])?([0-9a-fA-F]{64})(?![0-9a-fA-F])")
"""The digest in the name of a file that somebody renamed."""
_SHARD = re.compile("[0-9a-f]{2}")
_NUMBER = re.compile("[1-9][0-9]{0,17}")
ASIDE = ("tmp", "trash", "quarantine")


def survey_top(survey: Survey) -> None:
    """Look at the root: folders that are missing or no folders, and what else lies there."""
    survey.take_rights()
    known = {MARKER, *(name.split("/")[0] for name in FOLDERS)}
    present: set[str] = set()
    for entry in survey.entries(""):
        if entry.name in known and entry.name != MARKER:
            present.add(entry.name)
            survey.is_folder(entry, entry.name)
        elif entry.name not in known:
            survey.foreign(entry, entry.name, "")
    for name in FOLDERS:
        top = name.split("/")[0]
        if top not in present or (top not in survey.blocked and not os.path.lexists(survey.root / name)):
            survey.findings.add("folder-missing", name, f"the layout has a folder {name}/")
    for name in ("keys", "locks"):
        if name in present and name not in survey.blocked:
            _survey_reserved(survey, name)


def survey_aside(survey: Survey) -> None:
    """Look into the folders of what is unfinished, was taken out, or was moved away."""
    for name in ASIDE:
        if name not in survey.blocked:
            survey.entries(name)  # tells what is wrong with the folder itself
        survey.aside[name] = listed(survey, name)


def _survey_reserved(survey: Survey, folder: str) -> None:
    for entry in survey.entries(folder):
        path = f"{folder}/{entry.name}"
        state = survey.state(entry, path)
        if state is not None and stat.S_ISDIR(state.st_mode):
            _survey_reserved(survey, path)
        elif state is not None and (FOREIGN.fullmatch(entry.name) or not stat.S_ISREG(state.st_mode)):
            survey.foreign(entry, path, "")


def listed(survey: Survey, folder: str) -> dict[str, os.stat_result]:
    """Return the states of what is in a folder now, by name; nothing where it cannot be looked into."""
    found: dict[str, os.stat_result] = {}
    if folder in survey.blocked:
        return found
    try:
        with os.scandir(survey.root / folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False)
    except OSError:
        return found  # told when it was walked through
    return found


def survey_references(survey: Survey, wanted: Callable[[str], bool]) -> None:
    """Look through ``refs`` for the names that are wanted."""
    if "refs" not in survey.blocked:
        _survey_names(survey, "refs", (), wanted)


def _survey_names(
    survey: Survey, folder: str, segments: tuple[str, ...], wanted: Callable[[str], bool]
) -> None:
    name = "/".join(segments)
    for entry in survey.entries(folder):
        path = f"{folder}/{entry.name}"
        if entry.name in _INSIDE and segments:
            if wanted(name) and survey.is_folder(entry, path):
                _INSIDE[entry.name](survey, path, name)
        elif _is_segment(entry.name) and len(segments) < 3 and not _is_file(survey, entry, path):
            if survey.is_folder(entry, path):
                _survey_names(survey, path, (*segments, entry.name), wanted)
        elif wanted(name):
            what = "no part of a name" if len(segments) < 3 else "a fourth part of a name; three are allowed"
            survey.foreign(entry, path, what)


def _survey_versions(survey: Survey, folder: str, name: str) -> None:
    survey.versions[name] = sorted(_parsed(survey, folder, f"no version of {name} (MAJOR.MINOR.PATCH)"))


def _survey_tombstones(survey: Survey, folder: str, name: str) -> None:
    survey.tombstones[name] = set(_parsed(survey, folder, f"no version of {name} (MAJOR.MINOR.PATCH)"))


def _parsed(survey: Survey, folder: str, what: str) -> Iterator[Version]:
    for entry in survey.entries(folder):
        try:
            yield Version.parse(entry.name)
        except InvalidName:
            survey.foreign(entry, f"{folder}/{entry.name}", what)


def _survey_aliases(survey: Survey, folder: str, name: str) -> None:
    for entry in survey.entries(folder):
        if _is_alias(entry.name):
            survey.aliases[name].add(entry.name)
        else:
            survey.foreign(entry, f"{folder}/{entry.name}", f"no alias of {name}")


def _survey_logs(survey: Survey, folder: str, name: str) -> None:
    for entry in survey.entries(folder):
        path = f"{folder}/{entry.name}"
        if not _is_alias(entry.name):
            survey.foreign(entry, path, f"no alias of {name}")
        elif survey.is_folder(entry, path):
            moves = survey.logs[name].setdefault(entry.name, [])
            for move in survey.entries(path):
                if _NUMBER.fullmatch(move.name):
                    moves.append(int(move.name))
                else:
                    survey.foreign(move, f"{path}/{move.name}", f"no number of a move of {name}:{entry.name}")
            moves.sort()


_INSIDE: dict[str, Callable[[Survey, str, str], None]] = {
    "@versions": _survey_versions,
    "@tombstones": _survey_tombstones,
    "@aliases": _survey_aliases,
    "@log": _survey_logs,
}


def survey_evidence(survey: Survey, functions: frozenset[str] | None = None) -> None:
    """Look through ``evidence``; with function digests (64 hex) only for the pairs that have one of them."""
    if "evidence" not in survey.blocked:
        for extractor in _hexadecimal_folders(survey, "evidence"):
            for head in _hexadecimal_folders(survey, f"evidence/{extractor}"):
                if functions is None or extractor in functions or head in functions:
                    _survey_pair(survey, extractor, head)


def _survey_pair(survey: Survey, extractor: str, head: str) -> None:
    for conditions in _hexadecimal_folders(survey, f"evidence/{extractor}/{head}"):
        folder = f"evidence/{extractor}/{head}/{conditions}"
        for entry in survey.entries(folder):
            if HEXADECIMAL.fullmatch(entry.name):
                survey.results.append((extractor, head, conditions, entry.name))
            else:
                survey.foreign(entry, f"{folder}/{entry.name}", "no result (64 hex digits)")


def _hexadecimal_folders(survey: Survey, folder: str) -> Sequence[str]:
    found: list[str] = []
    for entry in survey.entries(folder):
        path = f"{folder}/{entry.name}"
        if not HEXADECIMAL.fullmatch(entry.name):
            survey.foreign(entry, path, "no digest (64 hex digits)")
        elif survey.is_folder(entry, path):
            found.append(entry.name)
    return found


def survey_blobs(survey: Survey) -> None:
    """Look through ``blobs``."""
    if "blobs" in survey.blocked:
        return
    for entry in survey.entries("blobs"):
        if entry.name == "sha256":
            if survey.is_folder(entry, "blobs/sha256"):
                _survey_shards(survey)
        else:
            survey.foreign(entry, f"blobs/{entry.name}", "no folder of the layout")


def _survey_shards(survey: Survey) -> None:
    for shard in survey.entries("blobs/sha256"):
        path = f"blobs/sha256/{shard.name}"
        if not _SHARD.fullmatch(shard.name):
            _misplaced(survey, shard, path)
        elif survey.is_folder(shard, path):
            for entry in survey.entries(path):
                _survey_blob(survey, entry, shard.name, f"{path}/{entry.name}")


def _survey_blob(survey: Survey, entry: os.DirEntry[str], shard: str, path: str) -> None:
    if not (HEXADECIMAL.fullmatch(entry.name) and entry.name.startswith(shard)):
        _misplaced(survey, entry, path)
        return
    state = survey.state(entry, path)
    if state is None:
        return  # taken out at this moment; whoever needs it will miss it
    odd = odd_kind(entry.path, state.st_mode, "file")
    if odd is None:
        survey.blobs[f"sha256:{entry.name}"] = state
    else:
        survey.odd[f"sha256:{entry.name}"] = odd


def _misplaced(survey: Survey, entry: os.DirEntry[str], path: str) -> None:
    state = survey.state(entry, path) if ANY_DIGEST.search(entry.name) else None
    if state is not None and stat.S_ISREG(state.st_mode):
        survey.misplaced.append(path)
    else:
        survey.foreign(entry, path, "no digest (64 hex digits)")


def _is_segment(name: str) -> bool:
    return _is(check_segment, name)


def _is_alias(name: str) -> bool:
    return _is(check_alias, name)


def _is(check: Callable[[str], str], name: str) -> bool:
    try:
        return bool(check(name))
    except InvalidName:
        return False


def _is_file(survey: Survey, entry: os.DirEntry[str], path: str) -> bool:
    state = survey.state(entry, path)
    return state is not None and stat.S_ISREG(state.st_mode)
