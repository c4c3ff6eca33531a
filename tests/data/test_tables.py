"""Tables of images: CSV and Parquet, with and without a column that divides them."""

from __future__ import annotations

import csv
import os
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import class_folder

import compatkit as ck
from compatkit.data.duplicates import file_ids, repeated_files
from compatkit.data.validation import DataWarning
from compatkit.errors import DataError, MissingDependency


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return class_folder(tmp_path / "photos", {"ant": 6, "bee": 4})


def rows(photos: Path) -> list[dict[str, Any]]:
    files = sorted(photos.rglob("*.png"))
    return [{"path": str(file.relative_to(photos)), "label": file.parent.name} for file in files]


def write(path: Path, table: list[dict[str, Any]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            made = csv.DictWriter(file, list(table[0]))
            made.writeheader()
            made.writerows(table)
        return path
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.Table.from_pylist(table), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_the_folder_that_it_lists(photos: Path, ending: str) -> None:
    table = write(photos / f"list.{ending}", rows(photos))
    data, folder = ck.data.load(table), ck.data.load(photos)
    assert data.name == "list" and data.classes == ("ant", "bee")
    assert (data.train.digest, data.test.digest) == (folder.train.digest, folder.test.digest)
    assert ck.data.load(table, hold_out=0.5).test.counts == (3, 2)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_divides_the_images(photos: Path, ending: str) -> None:
    parts = ["train", "val", "Train", "test"]
    table = [{**row, "split": parts[place % 4]} for place, row in enumerate(rows(photos))]
    with pytest.warns(DataWarning, match="test is not used") as caught:
        data = ck.data.load(write(photos / f"list.{ending}", table))
    assert [warning.filename for warning in caught] == [__file__]
    assert data.train.counts == (3, 2) and data.test.counts == (2, 1)
    assert data.train.name == "list/train" and data.test.name == "list/test" and not data.test.sample
    with pytest.warns(DataWarning), pytest.raises(DataError, match="test images of its own"):
        ck.data.load(photos / f"list.{ending}", hold_out=0.5)


def test_numbers_are_sorted_by_size_and_named_by_a_list(photos: Path) -> None:
    table = [{**row, "label": 10 if row["label"] == "ant" else 2, "more": "x"} for row in rows(photos)]
    assert ck.data.load(write(photos / "list.csv", table)).classes == ("2", "10")
    arrow = write(photos / "list.parquet", table)
    assert ck.data.load(arrow).classes == ("2", "10")
    (photos / "classes.txt").write_text("\n".join(f"kind {number}" for number in range(11)))
    with pytest.raises(DataError) as caught:  # nine classes without an image, of which none can be held out
        ck.data.load(arrow)
    assert caught.value.subject == "kind 0"
    (photos / "classes.txt").write_text("kind 0\nkind 1\n")
    with pytest.raises(DataError, match="from 0 to 1") as caught:
        ck.data.load(arrow)
    assert caught.value.subject == "10"
    renamed = [{**row, "label": int(row["label"] == "ant")} for row in rows(photos)]
    data = ck.data.load(write(photos / "list.csv", renamed))
    assert data.classes == ("kind 0", "kind 1") and data.train.counts == (3, 5)


def test_names_in_the_order_of_a_list(photos: Path) -> None:
    (photos / "classes.txt").write_text("bee\nant\n")
    data = ck.data.load(write(photos / "list.csv", rows(photos)))
    assert data.classes == ("bee", "ant") and data.train.counts == (3, 5)


def test_names_with_commas_quotes_and_a_mark_of_order(photos: Path) -> None:
    table = [{**row, "label": f'{row["label"]}, "the" é'} for row in rows(photos)]
    path = write(photos / "list.csv", table)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert ck.data.load(path).classes == ('ant, "the" é', 'bee, "the" é')


def refused(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        ck.data.load(path)
    assert caught.value.code == "data"
    return caught.value


def test_tables_that_are_none(photos: Path) -> None:
    good, path = rows(photos), photos / "list.csv"
    assert refused(path).subject == path
    path.write_text("")
    assert refused(path).subject == path
    path.write_text("path,label\n")
    assert "no rows" in str(refused(path))
    path.write_bytes(b"path,label\n\xff\xfe,ant\n")
    assert refused(path).subject == path
    path.write_text("path,label\na.png\n")
    assert "line 2" in str(refused(path))
    path.write_text("path,label\na.png,ant,more\n")
    assert "line 2" in str(refused(path))
    write(path, [{"file": item["path"], "label": item["label"]} for item in good])
    assert "file, label" in str(refused(path))
    write(path, [*good, {"path": "nowhere.png", "label": "ant"}])
    error = refused(path)
    assert error.subject == photos / "nowhere.png" and "line 12" in str(error)
    write(path, [*good[:-1], {**good[-1], "label": ""}])
    assert refused(path).subject == path and "line 11" in str(refused(path))
    path.write_text('path,label,note\n\na.png,ant,"two\nlines"\n\na.png\n')
    assert "line 6" in str(refused(path))
    arrow = write(photos / "list.parquet", [*good[:-1], {**good[-1], "label": None}])
    assert refused(arrow).subject == arrow and "row 10" in str(refused(arrow))
    path.write_text("path;label\na.png;ant\n")
    assert "commas" in str(refused(path))
    path.write_text("path,label,label\na.png,ant,bee\n")
    assert "'label' twice" in str(refused(path))


def test_a_file_that_is_listed_again(photos: Path) -> None:
    """In two classes, in two parts, or on both sides of what is held out; to weigh training images is no mistake."""
    good, path = rows(photos), photos / "list.csv"
    again = good[2]["path"]
    for more in ({"label": "bee"}, {}):
        error = refused(write(path, [*good, {**good[2], **more}]))
        assert error.subject == again and "line 4 and line 12" in str(error)
    parts = [{**item, "split": "val" if place % 2 else "train"} for place, item in enumerate(good)]
    assert refused(write(path, [*parts, {**parts[2], "split": "val"}])).subject == again
    assert ck.data.load(write(path, [*parts, parts[2]])).train.counts == (4, 2)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("label", [0.0, 1.0]),
        ("label", [["ant"], ["bee"]]),
        ("label", [{"name": "ant"}, {"name": "bee"}]),
        ("label", [b"ant", b"bee"]),
        ("label", [None, None]),
        ("path", [0, 1]),
        ("path", [b"ant/000.png", b"bee/000.png"]),
    ],
)
def test_columns_that_hold_other_than_names(photos: Path, column: str, values: list[Any]) -> None:
    table = [
        {"path": "ant/000.png", "label": "ant", column: values[0]},
        {"path": "bee/000.png", "label": "bee", column: values[1]},
    ]
    assert refused(write(photos / "list.parquet", table)).subject == column


@pytest.mark.parametrize(
    ("parts", "subject"),
    [(["train"], None), (["val"], None), (["train", "held"], "held"), (["train", ""], "")],
)
def test_parts_that_are_none(photos: Path, parts: list[str], subject: str | None) -> None:
    table = [{**row, "split": parts[place % len(parts)]} for place, row in enumerate(rows(photos))]
    assert refused(write(photos / "list.csv", table)).subject == subject


def test_a_class_without_training_images(photos: Path) -> None:
    table = [{**row, "split": "train" if row["label"] == "ant" else "test"} for row in rows(photos)]
    assert refused(write(photos / "list.csv", table)).subject == "bee"


def test_damaged_parquet_and_a_library_that_is_missing(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(photos / "list.parquet", rows(photos))
    path.write_bytes(path.read_bytes()[:-20])
    assert refused(path).subject == path
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"compatkit\[datasets\]") as caught:
        ck.data.load(path)
    assert caught.value.subject == "pyarrow"


def test_paths_above_the_table(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    table = [{**row, "path": f"../photos/{row['path']}"} for row in rows(photos)]
    data = ck.data.load(write(tmp_path / "lists" / "list.csv", table))
    assert data.train.digest == ck.data.load(photos).train.digest
    assert np.array_equal(data.train.images.pixels(0), ck.data.load(photos).train.images.pixels(0))


SPELLINGS = {
    "dot": lambda photos, path: f"./{path}",
    "there and back": lambda photos, path: f"ant/../{path}",
    "two slashes": lambda photos, path: path.replace("/", "//"),
    "absolute": lambda photos, path: str(photos / path),
    "from above": lambda photos, path: f"../{photos.name}/{path}",
    "link": lambda photos, path: linked(photos, path, os.symlink),
    "second name": lambda photos, path: linked(photos, path, os.link),
    "linked folder": lambda photos, path: f"{linked_folder(photos)}/{path}",
}


def linked(photos: Path, path: str, link: Callable[[Path, Path], None]) -> str:
    link(photos / path, photos / "again.png")
    return "again.png"


def linked_folder(photos: Path) -> str:
    (photos / "all").symlink_to(photos)
    return "all"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_is_one_however_its_path_is_spelled(photos: Path, spelling: str) -> None:
    good, path = rows(photos), photos / "list.csv"
    again = SPELLINGS[spelling](photos, good[2]["path"])
    for more in ({"label": "bee"}, {}):
        error = refused(write(path, [*good, {**good[2], "path": again, **more}]))
        assert error.subject == again and "line 4 and line 12" in str(error)
    parts = [{**item, "split": "val" if place % 2 else "train"} for place, item in enumerate(good)]
    assert refused(write(path, [*parts, {**parts[2], "path": again, "split": "val"}])).subject == again
    data = ck.data.load(write(path, [*parts, {**parts[2], "path": again, "split": "Training"}]))
    assert data.train.counts == (4, 2)


def test_files_to_which_a_file_system_gives_one_number(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.stat

    def one_number(path: Any, **settings: Any) -> os.stat_result:
        result = plain(path, **settings)
        return os.stat_result((result.st_mode, 7, *result[2:]))

    write(photos / "list.csv", rows(photos))
    monkeypatch.setattr("compatkit.data.duplicates.os.stat", one_number)
    paths = [row["path"] for row in rows(photos)]
    assert list(repeated_files(photos, paths, file_ids(photos, paths))) == []
    paths += [f"./{paths[3]}"]
    assert list(repeated_files(photos, paths, file_ids(photos, paths))) == [(3, 10)]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "values"),
    [("Split", ["train", "test"]), ("set", ["TRAIN", "dev"]), ("usage", ["Training", "PublicTest"])],
)
def test_columns_that_divide_under_another_name(
    photos: Path, ending: str, column: str, values: list[str]
) -> None:
    table = [{**row, column: values[place % 2]} for place, row in enumerate(rows(photos))]
    assert refused(write(photos / f"list.{ending}", table)).subject == column


def test_a_column_of_categories_that_divides(photos: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parts = [None, None, *["train", "test"] * 4]
    columns = {name: [row[name] for row in rows(photos)] for name in ("path", "label")}
    table = arrow.table({**columns, "phase": arrow.array(parts).dictionary_encode()})
    parquet.write_table(table, photos / "list.parquet")
    assert refused(photos / "list.parquet").subject == "phase"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_of_flags_that_divide(photos: Path, ending: str) -> None:
    table = [{**row, "is_valid": place % 2 == 0} for place, row in enumerate(rows(photos))]
    assert refused(write(photos / f"list.{ending}", table)).subject == "is_valid"
    table = [{**row, "is_valid": place % 2} for place, row in enumerate(rows(photos))]
    assert refused(write(photos / f"list.{ending}", table)).subject == "is_valid"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_other_columns_divide_nothing(photos: Path, ending: str) -> None:
    table = [
        {**row, "camera": "train" if place else "phone", "n": place} for place, row in enumerate(rows(photos))
    ]
    assert ck.data.load(write(photos / f"list.{ending}", table)).train.counts == (5, 3)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    "parts", [("TRAIN", "VAL"), ("Training", "Testing"), ("train_images", "holdout"), ("train", "dev")]
)
def test_parts_in_any_spelling(photos: Path, ending: str, parts: tuple[str, str]) -> None:
    table = [{**row, "split": parts[place % 2]} for place, row in enumerate(rows(photos))]
    data = ck.data.load(write(photos / f"list.{ending}", table))
    assert data.train.counts == (3, 2) and data.test.counts == (3, 2)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("mark", ["nan", "None", "-1", "N/A", "null", "'ant'"])
def test_labels_that_are_none(photos: Path, ending: str, mark: str) -> None:
    table = rows(photos)
    table[4]["label"] = mark
    path = write(photos / f"list.{ending}", table)
    assert refused(path).subject == mark
    (photos / "classes.txt").write_text(f"ant\nbee\n{mark}\n")
    table[5]["label"] = mark
    if mark != "nan":
        assert ck.data.load(write(path, table)).classes == ("ant", "bee", mark)


def test_paths_in_folders_of_parts(photos: Path) -> None:
    for part in ("Training", "test"):
        class_folder(photos / part, {"ant": 2, "bee": 2}, seed=len(part) * 10)
    table = [
        {"path": str(path.relative_to(photos)), "label": path.parent.name}
        for path in photos.glob("T*/*/*.png")
    ]
    assert ck.data.load(write(photos / "list.csv", table)).train.counts == (1, 1)
    more = [
        {"path": str(path.relative_to(photos)), "label": path.parent.name}
        for path in photos.glob("t*/*/*.png")
    ]
    assert refused(write(photos / "list.csv", table + more)).subject == photos / "list.csv"
    parts = [{**row, "split": "test" if row in more else "train"} for row in table + more]
    assert ck.data.load(write(photos / "list.csv", parts)).test.counts == (2, 2)


def test_a_space_before_a_quote(photos: Path) -> None:
    lines = [f'{row["path"]}, "{row["label"]}, the"' for row in rows(photos)]
    (photos / "list.csv").write_text("path, label\n" + "\n".join(lines) + "\n")
    assert ck.data.load(photos / "list.csv").classes == ("ant, the", "bee, the")


def test_numbers_in_two_spellings(photos: Path) -> None:
    table = [
        {**row, "label": "0" * (1 + place % 2) if row["label"] == "ant" else "1"}
        for place, row in enumerate(rows(photos))
    ]
    assert refused(write(photos / "list.csv", table)).subject == "00"


def test_one_of_a_set_of_tables(photos: Path) -> None:
    path = write(photos / "list-00000-of-00002.csv", rows(photos))
    with pytest.warns(DataWarning, match="one of a set"):
        ck.data.load(path)


def test_a_path_that_is_composed_otherwise(photos: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    (photos / "ant").rename(photos / decomposed)
    table = [{**row, "path": row["path"].replace(decomposed, composed)} for row in rows(photos)]
    if not (photos / composed).is_dir():
        assert "NFD" in str(refused(write(photos / "list.csv", table)))
