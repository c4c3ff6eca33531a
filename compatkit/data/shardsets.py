"""Sets of shards, whose file names state how many there are (``train-00000-of-00002.tar``): no shard may be missing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import DataError

_INDEX_OF_TOTAL = re.compile(r"([0-9]{1,9})([-_. ]*of[-_. ]*)([0-9]{1,9})", re.IGNORECASE)
_LAST_INDEX = re.compile(r"(.*[^0-9]|)([0-9]{1,9})([^0-9]*)")
_DIGEST = re.compile(r"^[-_.][0-9a-f]{8,64}(?=[.]|$)")
"""Content hash that some writers append to each shard name."""
UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".incomplete")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4")


def find_incomplete_set(paths: Iterable[str]) -> tuple[str, str, int] | None:
    """Find the first incomplete shard set; return (first missing file, an existing file, number missing), or None.

    Args:
        paths: Relative POSIX paths, including extensions.
    """
    sets: dict[tuple[str, str, str, str], dict[int, str]] = {}
    for path in paths:
        for match in _index_of_total(path):
            key = (path[: match.start()], match[2], match[3], _DIGEST.sub("", path[match.end() :]))
            sets.setdefault(key, {})[int(match[1])] = path
    for (prefix, separator, total, suffix), files in sets.items():
        # Indices start at 0, as most writers number. They start at 1 if the index that equals the total exists, which
        # a set that starts at 0 does not have, and index 0 does not.
        first = 1 if int(total) in files and 0 not in files else 0
        numbers = range(first, first + int(total))
        n_missing = len(numbers) - sum(number in numbers for number in files)
        if n_missing:
            number = next(number for number in numbers if number not in files)
            lost = f"{prefix}{number:0{len(total)}}{separator}{total}{suffix}"
            return lost, next(iter(files.values())), n_missing
    return None


def check_complete(paths: Iterable[str], folder: object, *, excluded: Iterable[str] = ()) -> None:
    """Refuse shard sets with missing files; warn of gaps in numbering where the names do not state a total.

    Args:
        paths: The files that are to be read.
        folder: Their folder, for messages.
        excluded: Files in the same folder that the glob excludes; they count as present.

    Raises:
        DataError: A name states more files than there are.
    """
    paths = [*paths, *excluded]
    incomplete = find_incomplete_set(paths)
    if incomplete is not None:
        lost, existing, n_missing = incomplete
        total = int(_index_of_total(existing)[0][3])
        verb, them = ("is", "it") if n_missing == 1 else ("are", "them")
        raise DataError(
            f"{folder}: {lost} is missing; {n_missing:,} of the {total:,} shards of the set {verb} missing. "
            f"Download {them}, or rename the files if these are all that you want.",
            subject=lost,
        )
    _warn_gaps(paths, folder)


def warn_single_shard(path: str) -> None:
    """Warn of a file that is asked for by its name, and whose name states that it is one of several shards."""
    if find_incomplete_set([path]) is not None:
        warn_caller(
            DataWarning(
                f"{path} is one of a set of files, as its name states; the others are not read. Load their folder, or "
                "a pattern, for all."
            )
        )


def _index_of_total(path: str) -> list[re.Match[str]]:
    """Return the last ``00000-of-00002`` in the name of the file, or an empty list."""
    return list(_INDEX_OF_TOTAL.finditer(path, path.rfind("/") + 1))[-1:]


def _warn_gaps(paths: Iterable[str], folder: object) -> None:
    """Warn of gaps in the numbering of files whose names do not state a total.

    Nothing is said where more numbers are missing than there are files: then they are probably no shard indices (dates,
    ids).

    Args:
        paths: Relative POSIX paths, including extensions. The last number in a path is its index.
        folder: Their folder, for messages.
    """
    sets: dict[tuple[str, str], dict[int, str]] = {}
    for path in paths:
        match = _LAST_INDEX.fullmatch(path)
        if match is not None and not _index_of_total(path):
            sets.setdefault((match[1], match[3]), {})[int(match[2])] = path
    for files in sets.values():
        first, last = min(files), max(files)
        # From first to last there are last - first + 1 numbers, so at 2 * len(files) or more, more of them are
        # missing than exist.
        if last - first >= 2 * len(files):
            continue
        missing = [str(number) for number in range(first, last) if number not in files]
        if missing:
            warn_caller(
                DataWarning(
                    f"{folder}: between {files[first]} and {files[last]} the numbers {', '.join(missing[:5])} are "
                    f"missing ({len(missing)} in all). Download those files if they belong to the set."
                )
            )


def check_skipped_files(paths: Iterable[str], extension: str, folder: object) -> None:
    """Reject skipped files that look like unfinished downloads, are compressed, or have the extension in another case.

    Args:
        paths: Files of any name.
        extension: Of the files that are read.
        folder: Their folder, for messages.

    Raises:
        DataError: There is one.
    """
    unfinished = tuple(extension + suffix for suffix in UNFINISHED)
    compressed = (*(extension + suffix for suffix in COMPRESSED), ".tgz", ".tbz2", ".txz")
    for path in paths:
        name = path.lower()
        if name.endswith(unfinished):
            fault = "looks like an unfinished download. Download it again, or remove it."
        elif name.endswith(compressed):
            fault = "is compressed, so it would be skipped. Unpack it, or remove it."
        elif name.endswith(extension) and not path.endswith(extension):
            fault = (
                f"has the extension {extension} in another case, so it would be skipped. Rename or remove it."
            )
        else:
            continue
        raise DataError(f"{folder}: {path} {fault}", subject=path)
