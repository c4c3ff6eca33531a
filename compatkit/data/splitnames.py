"""Names of splits (training, validation, test): one rule for folders, tables, shards, packs and Hugging Face.

A name is that of a split if nothing is left of it without usual additions and numbers: ``Train``, ``seg_train``,
``train_images``, ``val2017``, ``Hold-Out Set``. ``birds_test`` contains a split's word and another word, ``birds``: it
names a split only next to ``birds_train``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import DataError, near

WORDS = {
    "train": ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "dev", "development", "eval", "evaluation"),
    "test": ("test", "testing", "tst", "holdout", "heldout"),
}
"""Words of each kind of split. ``val`` comes before ``test`` when the test images are chosen."""
EXPECTED = "train or training, and val, valid, validation, dev, eval, test or holdout, in any case"
"""For messages."""
_CONTAINERS = (
    *("images", "image", "imgs", "img", "photos", "photo", "pictures", "picture", "pics"),
    *("samples", "sample", "files", "datasets", "dataset", "data", "ds", "subset", "set"),
    *("split", "partition", "part", "fold", "folder", "dir", "jpegs", "jpeg", "jpg", "png"),
)
"""Words for a container of images, whatever these show."""
_ADDITIONS = (
    *_CONTAINERS,
    *("seg", "crops", "cropped", "resized", "processed", "raw", "orig", "original", "labeled", "labelled"),
    *("my", "new", "final", "full", "all", "mini", "small", "the", "x", "version", "v", "rgb", "px"),
    *("aug", "augmented"),
)
_KIND = {word: kind for kind, words in WORDS.items() for word in words}
_EXACT = re.compile(f"(?:{'|'.join(_ADDITIONS)})*({'|'.join(_KIND)})(?:{'|'.join(_ADDITIONS)})*")
_SEVERAL = re.compile(f"(?:{'|'.join((*_ADDITIONS, *_KIND))})+")
_CONTAINER = re.compile(f"(?:{'|'.join(_CONTAINERS)})+")
_LETTERS = re.compile(r"[^\W\d_]+")
_CAMEL_CASE = re.compile("(?<=[a-z])(?=[A-Z])")
_HOLD_OUT = re.compile("(hold|held)[-_ ]out", re.IGNORECASE)
_FLAGS = {"0", "1", "true", "false", "t", "f", "yes", "no", "0.0", "1.0"}
_SHORT = {"tr": "train", "va": "val", "te": "test", "ts": "test"}
MAX_SPLITS = 12
"""Limit on the distinct values of a column that divides a table into splits."""
SIMILARITY = 0.8
"""Similarity to a split's word from which a name may be a misspelling of it."""


@attrs.frozen
class SplitName:
    """A parsed name that contains the word of a split.

    Attributes:
        kind: A key of ``WORDS``; ``""`` if the name contains words of several, such as ``trainval``.
        rest: Words besides that of the split; ``""`` if there are none.
    """

    kind: str
    rest: str = ""


def parse_split_name(name: str) -> SplitName | None:
    """Parse the name of a split; return None if no word of it names one.

    Args:
        name: Name of a folder, a shard without its extension, or a table's value for a row.
    """
    exact = _EXACT.fullmatch(_letters(name))
    if exact is not None:
        return SplitName(_KIND[exact[1]])
    words = [
        word.casefold() for word in _LETTERS.findall(_CAMEL_CASE.sub(" ", _HOLD_OUT.sub(r"\1out", name)))
    ]
    kinds = [_kinds(word) for word in words]
    known = {kind for word_kinds in kinds for kind in word_kinds}
    if not known:
        return None
    rest = " ".join(word for word, word_kinds in zip(words, kinds, strict=True) if not word_kinds)
    return SplitName(known.pop() if len(known) == 1 else "", rest)


def split_kind(name: str) -> str | None:
    """Return the kind of split that a name stands for, without other words; None if it stands for none."""
    split = parse_split_name(name)
    return split.kind or None if split is not None and not split.rest else None


def _kinds(word: str) -> set[str]:
    exact = _EXACT.fullmatch(word)
    if exact is not None:
        return {_KIND[exact[1]]}
    return {kind for part, kind in _KIND.items() if part in word} if _SEVERAL.fullmatch(word) else set()


def _letters(name: str) -> str:
    return "".join(_LETTERS.findall(name.casefold()))


def is_container(name: str) -> bool:
    """Return whether a folder's name says only that it contains images, such as ``images``, ``part1``, ``fold_2``."""
    return _CONTAINER.fullmatch(_letters(name)) is not None


def similar_split_word(name: str) -> str | None:
    """Return the word of a split that a name may be a misspelling of, else None."""
    if (letters := _letters(name)) in _SHORT:
        return _SHORT[letters]
    similar = near(letters, _KIND, cutoff=SIMILARITY)
    return similar[0] if similar else None


def divided(kinds: Collection[str | None]) -> bool:
    """Return whether some kinds of splits include training images and others."""
    known = set(kinds) - {None}
    return "train" in known and len(known) > 1


def heldout_kind(kinds: Collection[str]) -> str | None:
    """Return the kind of split that is used as test images; None if there is none."""
    return next((kind for kind in ("val", "test") if kind in kinds), None)


def warn_unused(splits: Mapping[str, str], source: object) -> None:
    """Warn if a data set has both validation and test images, of which only one split is used.

    Args:
        splits: Names of the splits by kind.
        source: The data set, for messages.
    """
    if set(WORDS) <= splits.keys():
        val, test = splits["val"], splits["test"]
        warn_caller(
            DataWarning(f"{source}: {test} is not used, since {val} is. To test on {test}, leave {val} out.")
        )


def split_kinds_of_files(paths: Sequence[str], source: object) -> list[str] | None:
    """Return the kind of split of each file; None if their names do not divide them.

    Args:
        paths: Paths relative to their common folder, with ``/`` and without extensions. The file name takes
            precedence over its folders, the nearest first.
        source: The folder, for messages.

    Raises:
        DataError: A file names several splits; or some files name a split and others none.
    """
    splits = [_of_path(path) for path in paths]
    if not any(splits):
        _check_spelling(paths, source)
        return None
    for path, split in zip(paths, splits, strict=True):
        if split is None or not split.kind:
            raise DataError(
                f"{source}: {path} names {'no split' if split is None else 'several splits'}, where other files name "
                f"one. Expected in each name: {EXPECTED}. Rename it, or select the other files by a pattern.",
                subject=path,
            )
    return [split.kind for split in splits if split is not None]


def check_undivided(folders: Iterable[str], source: object, advice: str) -> None:
    """Refuse a set of files whose folders are splits of several kinds.

    Args:
        folders: Folders of the files, with ``/``; the innermost name of a split counts.
        source: The data set, for messages.
        advice: End of the message.

    Raises:
        DataError: The folders divide the files.
    """
    names: dict[str, str] = {}
    for folder in sorted(set(folders)):
        for name in reversed(folder.split("/")):
            if kind := split_kind(name):
                names.setdefault(kind, name)
                break
    if divided(names):
        shown = " and ".join(f"{name}/" for name in names.values())
        raise DataError(
            f"{source}: the folders {shown} look like splits of a data set. {advice}", subject=source
        )


def _check_spelling(paths: Sequence[str], source: object) -> None:
    """Refuse files with misspelled names of several splits, such as ``trian`` and ``testt``."""
    similar = {
        word: path for path in paths if (word := similar_split_word(path.rpartition("/")[2])) is not None
    }
    if len({_KIND[word] for word in similar}) > 1:
        raise DataError(
            f"{source}: {' and '.join(similar.values())} look like {' and '.join(similar)}. Rename the files; expected "
            f"for splits: {EXPECTED}.",
            subject=source,
        )


def _of_path(path: str) -> SplitName | None:
    return next((split for name in reversed(path.split("/")) if (split := parse_split_name(name))), None)


def are_split_names(names: Iterable[str]) -> bool:
    """Return whether all names, given as those of classes, name splits: training and others."""
    names = set(names)
    return all(map(parse_split_name, names)) and divided(set(map(split_kind, names)))


def is_split_column(column: str, values: Iterable[object]) -> bool:
    """Return whether a column of a table divides its rows into splits.

    Args:
        column: Name of the column.
        values: Its distinct values: a few that include names of training and test images; or true and false if the
            column's name contains the word of a split (``is_train``).
    """
    texts = {str(value).strip() for value in values if value is not None} - {""}
    if len(texts) < 2 or len(texts) > MAX_SPLITS:
        return False
    splits = [split for text in texts if (split := parse_split_name(text))]
    if divided({split.kind for split in splits}) and any(map(split_kind, texts)):
        return True
    return parse_split_name(column) is not None and {text.casefold() for text in texts} <= _FLAGS
