"""Sets of files whose names state how many there are, such as ``train-00000-of-00002.tar``: none may be missing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from compatkit.data.checking import DataWarning, warn_caller
from compatkit.errors import DataError

_COUNTED = re.compile(r"([0-9]{1,9})([-_. ]*of[-_. ]*)([0-9]{1,9})", re.IGNORECASE)
_NUMBERED = re.compile(r"(.*[^0-9]|)([0-9]{1,9})([^0-9]*)")
_DIGEST = re.compile(r"^[-_.][0-9a-f]{8,64}(?=[.]|$)")
"""What some writers add to each name of a set."""
UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".incomplete")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4")


def missing_of(paths: Iterable[str]) -> tuple[str, str, int] | None:
    """Return a set of files that is not whole: its first missing file, one that is there, and how many are missing.

    Args:
        paths: With ``/``, and endings. Numbers start at 0 or at 1.
    """
    sets: dict[tuple[str, str, str, str], dict[int, str]] = {}
    for path in paths:
        for match in list(_COUNTED.finditer(path, path.rfind("/") + 1))[-1:]:
            key = (path[: match.start()], match[2], match[3], _DIGEST.sub("", path[match.end() :]))
            sets.setdefault(key, {})[int(match[1])] = path
    for (front, of, total, end), files in sets.items():
        first = 1 if int(total) in files and 0 not in files else 0
        numbers = range(first, first + int(total))
        lacking = len(numbers) - sum(number in numbers for number in files)
        if lacking:
            number = next(number for number in numbers if number not in files)
            return f"{front}{number:0{len(total)}}{of}{total}{end}", next(iter(files.values())), lacking
    return None


def check_whole(paths: Iterable[str], where: object, *, others: Iterable[str] = ()) -> None:
    """Refuse files of a set of which some are missing; warn of gaps in numbers that state no count.

    Args:
        paths: The files that are to be read.
        where: Their folder, for messages.
        others: Files beside them that a pattern leaves out: these are not missing.

    Raises:
        DataError: A name states more files than there are.
    """
    paths = [*paths, *others]
    missing = missing_of(paths)
    if missing is not None:
        lost, some, count = missing
        raise DataError(
            f"{where}: {lost} is missing; {some} counts {count:,} more than there are. Fetch what is missing, or "
            "rename the files if these are all that are wanted.",
            subject=lost,
        )
    _tell_gaps(paths, where)


def tell_single(path: str) -> None:
    """Warn of a file that is asked for by its name, and whose name states that it is one of several."""
    if missing_of([path]) is not None:
        warn_caller(
            DataWarning(
                f"{path} is one of a set of files, as its name states; the others are not read. Load their folder, or "
                "a pattern, for all."
            )
        )


def _tell_gaps(paths: Iterable[str], where: object) -> None:
    """Warn of numbers that are missing between those of files which are numbered one by one.

    Nothing is said where more numbers are missing than there are files: such numbers count something else.

    Args:
        paths: With ``/``, and endings; the last number of a name counts.
        where: Their folder, for messages.
    """
    sets: dict[tuple[str, str], dict[int, str]] = {}
    for path in paths:
        match = _NUMBERED.fullmatch(path)
        if match is not None and _COUNTED.search(path, path.rfind("/") + 1) is None:
            sets.setdefault((match[1], match[3]), {})[int(match[2])] = path
    for files in sets.values():
        first, last = min(files), max(files)
        if last - first >= 2 * len(files):
            continue
        missing = [str(number) for number in range(first, last) if number not in files]
        if missing:
            warn_caller(
                DataWarning(
                    f"{where}: between {files[first]} and {files[last]} the numbers {', '.join(missing[:5])} are "
                    f"missing ({len(missing)} in all). Fetch those files if they belong to the set."
                )
            )


def check_finished(paths: Iterable[str], ending: str, where: object) -> None:
    """Refuse files beside those that are read, of which a download is not finished, or which are compressed.

    Args:
        paths: Files of any name.
        ending: Of the files that are read.
        where: Their folder, for messages.

    Raises:
        DataError: There is one.
    """
    for path in paths:
        name = path.lower()
        others = (*(ending + more for more in (*UNFINISHED, *COMPRESSED)), ".tgz", ".tbz2", ".txz")
        if name.endswith(others) or (name.endswith(ending) and not path.endswith(ending)):
            raise DataError(
                f"{where}: {path} would be left out: it does not end in {ending}, is compressed, or its download is "
                "not finished. Unpack or rename it, fetch it again, or remove it.",
                subject=path,
            )
