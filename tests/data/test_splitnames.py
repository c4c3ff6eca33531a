"""Names of parts: which are those of a part alone, which have other words, and which are none."""

from __future__ import annotations

import pytest

from compatkit.data.splitnames import divides, held_out, misspelt, part_name, parts_of_files
from compatkit.errors import DataError

TRAIN = "train Train TRAIN training trn seg_train train_images train2017 dataset_train x_train Training-Set trainset"
VAL = "val VAL valid_images Validation dev eval evaluation ValData minival validation_2 imgs.valid"
TEST = "test Testing seg_test imgs-test holdout Hold-Out_Set held_out heldout testset TestImages"


@pytest.mark.parametrize(("kind", "names"), [("train", TRAIN), ("val", VAL), ("test", TEST)])
def test_names_of_parts_alone(kind: str, names: str) -> None:
    for name in names.split():
        part = part_name(name)
        assert part is not None and part.plain and part.kind == kind, name


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
    part = part_name(name)
    assert part is not None and (part.kind, part.rest) == (kind, rest) and not part.plain


@pytest.mark.parametrize(
    "name", "valley trainers oval contest strain cat none images dataset 1 été attest data_2".split()
)
def test_names_of_no_part(name: str) -> None:
    assert part_name(name) is None


def test_names_that_are_similar() -> None:
    assert misspelt("trainning") == "training" and misspelt("Validaton") == "validation"
    assert misspelt("beaker") is None


def test_validation_images_count_before_test_images() -> None:
    assert held_out(["test", "train", "val"]) == "val" and held_out(["train", "test"]) == "test"
    assert held_out(["train"]) is None


def test_files_by_their_names_and_folders() -> None:
    assert parts_of_files(["birds-train-0", "training/birds-val-1", "test/2"], "x") == [
        "train",
        "val",
        "test",
    ]
    assert parts_of_files(["0", "valley-1"], "x") is None
    for paths, subject in (
        (["train-0", "more"], "more"),
        (["trainval-0"], "trainval-0"),
        (["dev-0", "1"], "1"),
        (["trian-0", "testt"], "x"),
        (["tr-0", "te-0"], "x"),
        (["trains", "0", "valdation-1"], "x"),
    ):
        with pytest.raises(DataError) as caught:
            parts_of_files(paths, "x")
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
    assert divides(column, values) == does
