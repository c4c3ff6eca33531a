"""Names of parts: which are those of a part alone, which have other words, and which are none."""

from __future__ import annotations

import pytest

from compatkit.data.splitnames import (
    heldout_kind,
    is_split_column,
    parse_split_name,
    similar_split_word,
    split_kind,
    split_kinds_of_files,
)
from compatkit.errors import DataError

TRAIN = "train Train TRAIN training trn seg_train train_images train2017 dataset_train x_train Training-Set trainset"
VAL = "val VAL valid_images Validation dev eval evaluation ValData minival validation_2 imgs.valid"
TEST = "test Testing seg_test imgs-test holdout Hold-Out_Set held_out heldout testset TestImages"


@pytest.mark.parametrize(("kind", "names"), [("train", TRAIN), ("val", VAL), ("test", TEST)])
def test_names_of_parts_alone(kind: str, names: str) -> None:
    for name in names.split():
        part = parse_split_name(name)
        assert part is not None and not part.rest and part.kind == kind == split_kind(name), name


@pytest.mark.parametrize(
    ("name", "kind", "rest"),
    [
        ("birds_train", "train", "birds"),
        ("birdsTest", "test", "birds"),
        ("test tube", "test", "tube"),
        ("validation stamp", "val", "stamp"),
        ("birds_hold-out", "test", "birds"),
        ("trainval", "", ""),
        ("test-dev", "", ""),
        ("train_test_split", "", "split"),
    ],
)
def test_names_with_other_words(name: str, kind: str, rest: str) -> None:
    part = parse_split_name(name)
    assert part is not None and (part.kind, part.rest) == (kind, rest) and split_kind(name) is None


@pytest.mark.parametrize(
    "name", "valley trainers oval contest strain cat none images dataset 1 été attest data_2".split()
)
def test_names_of_no_part(name: str) -> None:
    assert parse_split_name(name) is None


def test_names_that_are_similar() -> None:
    assert similar_split_word("trainning") == "training" and similar_split_word("Validaton") == "validation"
    assert similar_split_word("beaker") is None


def test_validation_images_count_before_test_images() -> None:
    assert heldout_kind(["test", "train", "val"]) == "val" and heldout_kind(["train", "test"]) == "test"
    assert heldout_kind(["train"]) is None


def test_files_by_their_names_and_folders() -> None:
    assert split_kinds_of_files(["birds-train-0", "training/birds-val-1", "test/2"], "x") == [
        "train",
        "val",
        "test",
    ]
    assert split_kinds_of_files(["0", "valley-1"], "x") is None
    for paths, subject in (
        (["train-0", "more"], "more"),
        (["trainval-0"], "trainval-0"),
        (["dev-0", "1"], "1"),
        (["trian-0", "testt"], "x"),
        (["tr-0", "te-0"], "x"),
        (["trains", "0", "valdation-1"], "x"),
    ):
        with pytest.raises(DataError) as caught:
            split_kinds_of_files(paths, "x")
        assert caught.value.code == "data" and caught.value.subject == subject


@pytest.mark.parametrize(
    ("column", "values", "does"),
    [
        ("usage", ["Training", "PublicTest", "PrivateTest"], True),
        ("set", ["TRAIN", "dev"], True),
        ("is_valid", [True, False], True),
        ("is_train", [1, 0], True),
        ("is_train", [1], False),
        ("part", ["val", "test"], False),
        ("phase", ["train", None, "test", "unused"], True),
        ("caption", ["train", "test", *map(str, range(20))], False),
        ("camera", ["0", "1"], False),
        ("train_id", [3, 9], False),
    ],
)
def test_columns_that_divide(column: str, values: list[object], does: bool) -> None:
    assert is_split_column(column, values) == does
