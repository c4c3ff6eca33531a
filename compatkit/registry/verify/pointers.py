"""The small files that point at others, as they are found: versions, tombstones and measured results."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.codec import loads
from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.names import Version
from compatkit.registry.refs import LIMIT
from compatkit.registry.verify.faults import shown
from compatkit.registry.verify.survey import Survey, odd_kind

PATIENCE = 1.0
"""Seconds; a shorter version file that is younger may be one that another process is writing at this moment."""
LINE = re.compile(rb"sha256:[0-9a-f]{64}\n")
_CUT_OFF = re.compile(rb"|s|sh|sha|sha2|sha25|sha256|sha256:[0-9a-f]{0,64}")
"""What is left of such a line when its writing was cut off."""


@attrs.frozen
class Published:
    """A version file that holds a digest."""

    name: str
    version: Version
    digest: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def small_file(survey: Survey, path: str, whose: tuple[str, ...] = ()) -> bytes | None:
    """Return the content of a file of at most 64 KiB; None, and a fault, where that is not possible."""
    full = survey.root / path
    try:
        if odd := odd_kind(full, os.lstat(full).st_mode, "file"):
            survey.findings.add(odd[0], path, odd[1], whose)
            return None
        found = durable.read(full, survey.root, limit=LIMIT + 1)
    except FileNotFoundError:
        return None  # it was removed while the rest was looked at
    except IntegrityError as error:  # a folder above it became a link in the meantime
        survey.findings.add("symlink", path, str(error), whose)
        return None
    except (OSError, EnvironmentFailure) as error:
        survey.findings.unreadable(path, error, whose)
        return None
    return None if found is None else found[0]


def read_versions(survey: Survey, wanted: Callable[[str, Version], bool]) -> list[Published]:
    """Return every version that is wanted and points at a digest; report the others."""
    found: list[Published] = []
    for name, versions in sorted(survey.versions.items()):
        for version in versions:
            if wanted(name, version) and (digest := _digest(survey, name, version)) is not None:
                found.append(Published(name, version, digest))
    return found


def _digest(survey: Survey, name: str, version: Version) -> str | None:
    path, whose = f"refs/{name}/@versions/{version}", (f"{name}@{version}",)
    content = small_file(survey, path, whose)
    if content is not None and is_cut_off(content) and (left := PATIENCE - age(survey.root / path)) > 0:
        time.sleep(min(left, PATIENCE))
        content = small_file(survey, path, whose)
    if content is None:
        return None
    if LINE.fullmatch(content):
        return content.decode().strip()
    if is_cut_off(content):
        what = (
            f"expected 'sha256:' and 64 hex digits, got the first {len(content)} bytes: a publish was cut off"
        )
        survey.findings.add("version-torn", path, what, whose)
    else:
        what = f"expected 'sha256:' and 64 hex digits, got {shown(content)}"
        survey.findings.add("version-content", path, what, whose)
    return None


def is_cut_off(content: bytes) -> bool:
    """Tell whether a version file holds the beginning of what one holds, or nothing."""
    return _CUT_OFF.fullmatch(content) is not None


def age(path: Path) -> float:
    """Return how many seconds ago a file was written; infinity where that cannot be told, or lies ahead."""
    try:
        seconds = time.time() - os.lstat(path).st_mtime
    except OSError:
        return math.inf
    return seconds if seconds >= 0 else math.inf


def check_tombstones(survey: Survey, wanted: Callable[[str, Version], bool]) -> None:
    """Report tombstones that cannot be read, or of versions that are not there."""
    for name, versions in sorted(survey.tombstones.items()):
        known = set(survey.versions.get(name, ()))
        for version in sorted(versions):
            if not wanted(name, version):
                continue
            path, whose = f"refs/{name}/@tombstones/{version}", (f"{name}@{version}",)
            content = small_file(survey, path, whose)
            if content is None:
                continue
            if not is_tombstone(content):
                what = f"expected an object with reason and time, got {shown(content)}"
                survey.findings.add("tombstone-damaged", path, what, whose)
            if version not in known and not survey.is_hidden(f"refs/{name}/@versions"):
                what = f"{name} has no version {version}; one that is published under this number is withdrawn at once"
                survey.findings.add("tombstone-orphan", path, what, whose)


def is_tombstone(content: bytes) -> bool:
    """Tell whether a tombstone can be read."""
    value = read_json(content)
    return isinstance(value, dict) and isinstance(value.get("reason"), str)


def check_results(survey: Survey, label: Callable[[str, str], str]) -> list[tuple[str, str]]:
    """Return in words which pair was measured, and the digest, of each pointer to a result; report damaged ones.

    Args:
        survey: What is there.
        label: Says in words which pair two function digests are.
    """
    found: list[tuple[str, str]] = []
    for extractor, head, conditions, result in survey.results:
        path, whose = f"evidence/{extractor}/{head}/{conditions}/{result}", (label(extractor, head),)
        content = small_file(survey, path, whose)
        if content is None:
            continue
        if is_result_pointer(content, result):
            found.append((*whose, f"sha256:{result}"))
        else:
            what = f"expected the digest in its name, got {shown(content)}"
            survey.findings.add("evidence-damaged", path, what, whose)
    return found


def is_result_pointer(content: bytes, result: str) -> bool:
    """Tell whether a pointer to a result holds the digest that it is named by."""
    return content.strip() == f"sha256:{result}".encode()


def read_json(content: bytes) -> Any:
    """Return the JSON value in a small file, None where it holds none."""
    try:
        return loads(content, what="file")
    except FormatError:
        return None
