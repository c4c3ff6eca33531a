"""What the parts of a data set are called: one rule for folders, tables, shards, packs and Hugging Face.

A name is that of a part if nothing is left of it without usual additions and numbers: ``Train``, ``seg_train``,
``train_images``, ``val2017``, ``Hold-Out Set``. ``birds_test`` has a word of a part and another word, ``birds``: it
names a part beside ``birds_train`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import DataError, near

WORDS = {
    "train": ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "dev", "development", "eval", "evaluation"),
    "test": ("test", "testing", "tst", "holdout", "heldout"),
}
"""Words of each kind of part; of test images ``val`` counts before ``test``."""
KINDS = tuple(WORDS)
EXPECTED = "train or training, and val, valid, validation, dev, eval, test or holdout, in any case"
"""For messages."""
_HOLDERS = (
    *(
        "images",
        "image",
        "imgs",
        "img",
        "photos",
        "photo",
        "pictures",
        "picture",
        "pics",
        "samples",
        "sample",
        "files",
    ),
    *(
        "datasets",
        "dataset",
        "data",
        "ds",
        "subset",
        "set",
        "split",
        "partition",
        "part",
        "fold",
        "folder",
        "dir",
    ),
    *("jpegs", "jpeg", "jpg", "png"),
)
"""Words for what holds images, whatever these show."""
_ADDITIONS = (
    *_HOLDERS,
    *("seg", "crops", "cropped", "resized", "processed", "raw", "orig", "original", "labeled", "labelled"),
    *("my", "new", "final", "full", "all", "mini", "small", "the", "x", "version", "v", "rgb", "px"),
    *("aug", "augmented"),
)
_KIND = {word: kind for kind, words in WORDS.items() for word in words}
_ALONE = re.compile(f"(?:{'|'.join(_ADDITIONS)})*({'|'.join(_KIND)})(?:{'|'.join(_ADDITIONS)})*")
_SEVERAL = re.compile(f"(?:{'|'.join((*_ADDITIONS, *_KIND))})+")
_HOLDER = re.compile(f"(?:{'|'.join(_HOLDERS)})+")
_LETTERS = re.compile(r"[^\W\d_]+")
_HUMP = re.compile("(?<=[a-z])(?=[A-Z])")
_HELD_OUT = re.compile("(hold|held)[-_ ]out", re.IGNORECASE)
_FLAGS = {"0", "1", "true", "false", "t", "f", "yes", "no", "0.0", "1.0"}
_SHORT = {"tr": "train", "va": "val", "te": "test", "ts": "test"}
MOST_PARTS = 12
"""Values of a column that divides a table."""
SIMILAR = 0.8
"""From what similarity on a word may be one of a part that is misspelt."""


@attrs.frozen
class PartName:
    """What a name says of a part.

    Attributes:
        kind: One of ``KINDS``; ``""`` where words of several stand in it, as in ``trainval``.
        rest: Words besides that of the part; ``""`` where it is that of a part alone.
    """

    kind: str
    rest: str = ""

    @property
    def plain(self) -> bool:
        """Whether it is the name of a part alone."""
        return bool(self.kind) and not self.rest


def part_name(name: str) -> PartName | None:
    """Parse the name of a part; return None where no word names one.

    Args:
        name: Name of a folder, a shard without its ending, or a table's value for a row.
    """
    alone = _ALONE.fullmatch(_letters(name))
    if alone is not None:
        return PartName(_KIND[alone[1]])
    words = [word.casefold() for word in _LETTERS.findall(_HUMP.sub(" ", _HELD_OUT.sub(r"\1out", name)))]
    kinds = [_kinds(word) for word in words]
    known = {kind for of_word in kinds for kind in of_word}
    if not known:
        return None
    rest = " ".join(word for word, of_word in zip(words, kinds, strict=True) if not of_word)
    return PartName(known.pop() if len(known) == 1 else "", rest)


def _kinds(word: str) -> set[str]:
    alone = _ALONE.fullmatch(word)
    if alone is not None:
        return {_KIND[alone[1]]}
    return {kind for part, kind in _KIND.items() if part in word} if _SEVERAL.fullmatch(word) else set()


def _letters(name: str) -> str:
    return "".join(_LETTERS.findall(name.casefold()))


def is_holder(name: str) -> bool:
    """Return whether a name says of a folder only that images are in it, as ``images``, ``part1`` and ``fold_2`` do."""
    return _HOLDER.fullmatch(_letters(name)) is not None


def misspelt(name: str) -> str | None:
    """Return the word of a part that a name is similar to; None where there is none."""
    if (letters := _letters(name)) in _SHORT:
        return _SHORT[letters]
    similar = near(letters, _KIND, cutoff=SIMILAR)
    return similar[0] if similar else None


def held_out(kinds: Iterable[str]) -> str | None:
    """Return the kind of part whose images are the test images; None where there is none."""
    present = set(kinds)
    return next((kind for kind in KINDS[1:] if kind in present), None)


def tell_unused(parts: Mapping[str, str], where: object) -> None:
    """Warn where a data set has validation and test images: one of the two is used.

    Args:
        parts: Names of the parts by kind.
        where: The data set, for messages.
    """
    if "train" in parts and "val" in parts and "test" in parts:
        warn_caller(
            DataWarning(
                f"{where}: {parts['test']} is not used: {parts['val']} counts before it. To test on "
                f"{parts['test']}, leave {parts['val']} out."
            )
        )


def parts_of_files(paths: Sequence[str], where: object) -> list[str] | None:
    """Return the kind of part of each file; None where their names do not divide them.

    Args:
        paths: Of the files below the folder of all, with ``/`` and without endings. The name of the file counts before
            those of its folders, the nearest first.
        where: Their folder, for messages.

    Raises:
        DataError: A file names several parts; or some files name a part, and one names none.
    """
    parts = [_of_path(path) for path in paths]
    if all(part is None for part in parts):
        _check_spelling(paths, where)
        return None
    for path, part in zip(paths, parts, strict=True):
        if part is None or not part.kind:
            raise DataError(
                f"{where}: {path} names {'no part' if part is None else 'several parts'} of the data set, where others "
                f"name one. Expected in each name is one of {EXPECTED}. Rename it, or load the others by a pattern.",
                subject=path,
            )
    return [part.kind for part in parts if part is not None]


def check_folders(folders: Iterable[str], where: object, way_out: str) -> None:
    """Refuse files that are to be one set, and whose folders are parts of several kinds.

    Args:
        folders: Of the files, with ``/``; the nearest name of a part counts.
        where: Of the files, for messages.
        way_out: What to do, for messages.

    Raises:
        DataError: They are.
    """
    kinds: dict[str, str] = {}
    for folder in sorted(set(folders)):
        names = [
            name
            for name in reversed(folder.split("/"))
            if (part := part_name(name)) is not None and part.plain
        ]
        if names and (part := part_name(names[0])) is not None:
            kinds.setdefault(part.kind, names[0])
    if "train" in kinds and len(kinds) > 1:
        raise DataError(
            f"{where}: files lie in folders of several parts, {' and '.join(f'{name}/' for name in kinds.values())}, "
            f"which would be one set. {way_out}",
            subject=where,
        )


def _check_spelling(paths: Sequence[str], where: object) -> None:
    """Refuse files whose names are similar to those of several parts, such as ``trian`` and ``testt``."""
    similar = {word: path for path in paths if (word := misspelt(path.rpartition("/")[2])) is not None}
    if len({_KIND[word] for word in similar}) > 1:
        raise DataError(
            f"{where}: {' and '.join(similar.values())} look like {' and '.join(similar)}, and name no part. "
            f"Write one of {EXPECTED}, or rename the files.",
            subject=where,
        )


def _of_path(path: str) -> PartName | None:
    return next((part for name in reversed(path.split("/")) if (part := part_name(name)) is not None), None)


def are_parts(names: Iterable[str]) -> bool:
    """Return whether names, said to be those of classes, are all those of parts: of training images and of others."""
    parts = [part_name(name) for name in set(names)]
    kinds = {part.kind for part in parts if part is not None and part.plain}
    return None not in parts and "train" in kinds and len(kinds) > 1


def divides(column: str, values: Iterable[object]) -> bool:
    """Return whether a column of a table divides its rows into parts.

    Args:
        column: Its name.
        values: That it has: few, and among them names of training and of test images; or true and false, where its name
            has the word of a part (``is_train``).
    """
    texts = {str(value).strip() for value in values if value is not None} - {""}
    if len(texts) < 2 or len(texts) > MOST_PARTS:
        return False
    parts = [part for text in texts if (part := part_name(text)) is not None]
    kinds = {part.kind for part in parts}
    if "train" in kinds and len(kinds) > 1 and any(part.plain for part in parts):
        return True
    return part_name(column) is not None and {text.casefold() for text in texts} <= _FLAGS
