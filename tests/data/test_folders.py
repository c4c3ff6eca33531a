"""Folders of class folders: what is found, what is held out, what is refused, and what depends on the place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from photos import class_folder, encoded, photo

import compatkit as ck
from compatkit.data.folders import read_folder
from compatkit.data.imagefiles import image_files
from compatkit.data.skipped import SkippedFilesWarning
from compatkit.data.split import Split
from compatkit.data.validation import DataWarning
from compatkit.errors import DataError, EnvironmentFailure, UnknownName


def undivided(root: Path) -> Split:
    result = read_folder(root)
    assert isinstance(result, Split)
    return result


def names(split: Split) -> list[str]:
    return [split.images.reader.name(int(position)) for position in split.images.positions]  # type: ignore[union-attr]


def test_one_folder_a_class_in_the_order_of_their_names(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"bee": 3, "ant": 2})
    class_folder(root / "ant" / "deep", {"er": 2}, seed=50)
    (root / "ant" / "notes.txt").write_text("no image")
    (root / "bee" / ".hidden.png").write_bytes(b"")
    (root / "__MACOSX").mkdir()
    (root / ".git").mkdir()
    (root / "readme.md").write_text("photos")
    with pytest.warns(SkippedFilesWarning):
        result = undivided(root)
    assert result.classes == ("ant", "bee") and result.counts == (4, 3) and result.name == "photos/train"
    inside = [str(Path(name).relative_to(root)) for name in names(result)]
    assert inside == [*("ant/000.png", "ant/001.png", "ant/deep/er/000.png", "ant/deep/er/001.png")] + [
        f"bee/00{index}.png" for index in range(3)
    ]
    assert result.image(6).size == (11, 11)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        *(
            ("train", "val"),
            ("train", "test"),
            ("training", "validation"),
            ("Train", "Test"),
            ("TRAIN", "VAL"),
        ),
        *(
            ("seg_train", "seg_test"),
            ("train_images", "valid_images"),
            ("train2017", "val2017"),
            ("Train", "dev"),
        ),
        *(("dataset_train", "imgs-test"), ("training_set", "Hold-Out"), ("birds_train", "birds_eval")),
    ],
)
def test_both_parts(tmp_path: Path, train: str, test: str) -> None:
    class_folder(tmp_path / "photos" / train, {"ant": 3, "bee": 2})
    class_folder(tmp_path / "photos" / test, {"ant": 1, "bee": 2}, seed=9)
    data = ck.data.load(tmp_path / "photos")
    assert data.name == "photos" and (data.train.name, data.test.name) == ("photos/train", "photos/test")
    assert data.train.counts == (3, 2) and data.test.counts == (1, 2)
    assert data.source is not None and data.source.spec == {"name": str(tmp_path / "photos")}


def test_of_several_parts_of_test_images_the_first_counts(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "val", "test")):
        class_folder(tmp_path / "photos" / part, {"ant": 2 + number})
    with pytest.warns(DataWarning, match="test/ is not used") as caught:
        assert ck.data.load(tmp_path / "photos").test.counts == (3,)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("names", "subject"),
    [
        (("train", "Training", "test"), "train"),
        (("train", "val", "valid"), "valid"),
        (("train", "val", "test_night"), "test_night"),
        (("train_day", "test_night"), "test_night"),
        (("trainval", "extra"), "trainval"),
        (("train_cam2", "extra"), "train_cam2"),
        (("trainning", "testting"), "testting"),
        (("images",), "images"),
        (("part1", "part2"), "part1"),
        (("fold_0", "fold_1", "fold_2"), "fold_0"),
    ],
)
def test_what_looks_like_a_part_is_no_class(tmp_path: Path, names: tuple[str, ...], subject: str) -> None:
    for name in names:
        class_folder(tmp_path / "photos" / name, {"ant": 2, "bee": 2})
    error = refused(tmp_path / "photos")
    assert error.code == "data" and error.subject == tmp_path / "photos" / subject


@pytest.mark.parametrize("names", [("train", "car"), ("test", "car"), ("Holdout", "car"), ("train", "val")])
def test_parts_of_images_without_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    root = class_folder(tmp_path / "photos", dict.fromkeys(names, 3))
    assert refused(root).subject in (root, root / "train")


def test_words_that_only_look_like_parts(tmp_path: Path) -> None:
    classes = ("contest", "data", "oval", "test tube", "trainers", "trains", "valley")
    root = class_folder(tmp_path / "photos", dict.fromkeys(classes, 2))
    class_folder(root / "trains" / "steam", {"": 1})
    class_folder(root / "data" / "disks", {"": 1})
    assert undivided(root).classes == classes


def test_a_class_called_like_a_part_is_named_by_a_file(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"car": 3, "train": 2, "test tube": 2})
    class_folder(root / "test tube" / "glass", {"": 1})
    assert refused(root).subject == root
    (root / "classes.txt").write_text("train\ntest tube glassware\n")
    result = undivided(root)
    assert result.classes == ("car", "glassware", "train") and result.counts == (3, 3, 2)
    (root / "classes.txt").write_text("test tube\ttrain\ntrain railway\n")
    assert undivided(root).classes == ("car", "train", "railway")


def test_classes_called_like_parts_within_parts(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for part in ("train", "val"):
        class_folder(root / part, {"car": 2, "train": 2})
    (root / "classes.txt").write_text("train\n")
    assert ck.data.load(root).classes == ("car", "train")
    for part in ("seg_train", "seg_test"):  # as some archives unpack
        class_folder(tmp_path / "double" / part / part, {"ant": 2})
    assert refused(tmp_path / "double").subject == tmp_path / "double" / "seg_train"


def test_what_lies_beside_parts_is_left_out_and_told(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for part in ("train", "val", "unlabeled"):
        class_folder(root / part, {"ant": 2})
    (root / "annotations").mkdir()
    with pytest.warns(DataWarning, match=r"unlabeled/ \(1 in all\)"):
        assert ck.data.load(root).train.counts == (2,)


@pytest.mark.parametrize("name", ["nan", "None", "NULL", "N/A", "-1", "NaN"])
def test_a_folder_that_a_missing_label_made(tmp_path: Path, name: str) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 2})
    class_folder(root / name, {"": 2}) if "/" not in name else class_folder(root / "NA", {"": 2})
    assert refused(root).subject == name.replace("N/A", "NA")
    (root / "classes.txt").write_text(f"{name.replace('N/A', 'NA')} nothing\n")
    assert "nothing" in undivided(root).classes


def test_none_is_a_class_where_a_folder_says_so(tmp_path: Path) -> None:
    assert undivided(class_folder(tmp_path / "photos", {"none": 2, "rock": 2})).classes == ("none", "rock")


def test_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 20, "bee": 7, "cat": 2})
    data, whole = ck.data.load(root), undivided(root)
    assert data.test.counts == (2, 1, 1) and data.train.counts == (18, 6, 1)
    assert sorted(names(data.train) + names(data.test)) == sorted(names(whole))
    assert not data.train.sample and not data.test.sample
    again = ck.data.load(f"{root}/")
    assert (again.train.digest, again.test.digest) == (data.train.digest, data.test.digest)
    half = ck.data.load(root, hold_out=0.5, seed=1)
    assert half.test.counts == (10, 4, 1)
    assert ck.data.load(root, hold_out=0.5, seed=2).test.digest != half.test.digest
    assert half.source is not None
    assert ck.data.load_spec(half.source.spec).test.digest == half.test.digest


def test_what_one_class_holds_changes_no_other_draw(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"bee": 9, "cat": 9})
    before = {name for name in names(ck.data.load(root, hold_out=0.3).test) if "/cat/" in name}
    class_folder(root, {"ant": 5})
    shutil.rmtree(root / "bee")
    assert {name for name in names(ck.data.load(root, hold_out=0.3).test) if "/cat/" in name} == before


def test_a_recipe_holds_out_and_seeds(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 12, "bee": 8})
    data = ck.data.load_spec(
        {"name": "photos/", "hold_out": 0.25, "seed": 3, "train": 4}, relative_to=tmp_path
    )
    assert data.test.counts == (3, 2) and data.train.counts == (2, 2)
    assert data.source is not None
    again = ck.data.load_spec(data.source.spec)
    assert (again.train.digest, again.test.digest) == (data.train.digest, data.test.digest)
    assert ck.data.load(root, hold_out=0.25, seed=3).test.digest == data.test.digest
    assert ck.data.load_spec({"name": str(root), "hold_out": 0.25, "seed": 4}).test.digest != data.test.digest


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, True, "0.5"])
def test_a_share_lies_between_0_and_1(tmp_path: Path, share: object) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 4})
    with pytest.raises(DataError) as caught:
        ck.data.load_spec({"name": str(root), "hold_out": share})
    assert caught.value.code == "data" and caught.value.subject == "hold_out"


def test_nothing_is_held_out_of_what_is_divided(tmp_path: Path) -> None:
    for part in ("train", "val"):
        class_folder(tmp_path / "photos" / part, {"ant": 3})
    for name in (tmp_path / "photos", "peaks"):
        with pytest.raises(DataError, match="test images of its own"):
            ck.data.load(name, hold_out=0.2)
        with pytest.raises(DataError) as caught:
            ck.data.load(name, hold_out=1.5)
        assert (caught.value.code, caught.value.subject) == ("data", "hold_out")


def test_class_names_may_be_given(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"n01": 2, "n02": 2, "n03": 2})
    (root / "classes.txt").write_text("n02 great white shark\nn01\ttench\n\n")
    assert undivided(root).classes == ("tench", "great white shark", "n03")
    (root / "classes.txt").write_text("n09 nothing\n")
    with pytest.raises(DataError, match=r"names 'n09'.*n01, n02, n03") as caught:
        read_folder(root)
    assert caught.value.subject == root / "classes.txt"
    (root / "classes.txt").write_text("n01 tench\nn02 tench\n")
    with pytest.raises(DataError, match="'tench' comes twice"):
        read_folder(root)
    (root / "classes.txt").write_bytes(b"n01 \xff\xfe\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_folder(root)


def test_class_names_of_both_parts_lie_above_them_and_no_higher(tmp_path: Path) -> None:
    for part in ("train", "val"):
        class_folder(tmp_path / "photos" / part, {"n01": 2})
    (tmp_path / "classes.txt").write_text("of something else\n")
    assert ck.data.load(tmp_path / "photos").classes == ("n01",)
    (tmp_path / "photos" / "classes.txt").write_text("n01 tench\n")
    assert ck.data.load(tmp_path / "photos").classes == ("tench",)


def test_the_digest_is_of_content_and_not_of_place_or_time(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 3, "bee": 2})
    digest = undivided(root).digest
    shutil.copytree(root, tmp_path / "elsewhere" / "other", copy_function=shutil.copyfile)
    other = tmp_path / "elsewhere" / "other"
    assert undivided(other).digest == digest and undivided(other).name == "other/train"
    os.utime(other / "ant" / "000.png", (1, 1))
    assert undivided(other).digest == digest
    (other / "ant" / "000.png").write_bytes(encoded(photo(9, 13, seed=99)))
    assert undivided(other).digest != digest
    shutil.copyfile(root / "ant" / "000.png", other / "ant" / "000.png")
    assert undivided(other).digest == digest
    (other / "ant" / "002.png").rename(other / "bee" / "002.png")
    assert undivided(other).digest != digest
    (root / "ant").rename(root / "aunt")
    assert undivided(root).digest != digest


def refused(root: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        read_folder(root)
    return caught.value


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere").subject == tmp_path / "nowhere"
    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file").subject == tmp_path / "file"
    (tmp_path / "empty").mkdir()
    assert "no class folders" in str(refused(tmp_path / "empty"))
    flat = class_folder(tmp_path / "flat", {"": 3})
    assert "no class folders" in str(refused(flat))
    root = class_folder(tmp_path / "photos", {"ant": 2})
    (root / "bee").mkdir()
    (root / "bee" / "notes.txt").write_text("")
    assert refused(root).subject == root / "bee"


@pytest.mark.parametrize("part", ["train", "val"])
def test_one_part_alone(tmp_path: Path, part: str) -> None:
    root = tmp_path / "photos"
    class_folder(root / part, {"ant": 2})
    error = refused(root)
    assert error.subject == root and "Expected both" in str(error)


@pytest.mark.parametrize("test", ["val", "test"])
def test_a_folder_of_data_sets_is_no_data_set(tmp_path: Path, test: str) -> None:
    """Its data sets would be classes, and their training images test images."""
    root = tmp_path / "photos"
    for place in ("phone", "studio"):
        for part in ("train", test):
            class_folder(root / place / part, {"ant": 2, "bee": 2})
    error = refused(root)
    assert error.code == "data" and error.subject == root / "phone"
    assert ck.data.load(root / "phone").classes == ("ant", "bee")


def test_a_class_that_is_called_like_a_part(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "vehicles", {"bus": 2, "tram": 3})
    class_folder(root / "bus" / "train", {"": 2})
    assert undivided(root).counts == (4, 3)


@pytest.mark.parametrize("name", ["ph\noto", "ph\x1b[31moto", os.fsdecode(b"ph\xffoto")])
def test_a_folder_whose_name_no_contract_holds(tmp_path: Path, name: str) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 2})
    with pytest.raises(DataError) as caught:
        ck.data.load(root.rename(tmp_path / name))
    assert caught.value.code == "data" and caught.value.subject == name


def test_a_class_folder_whose_name_no_contract_holds(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 2, "bee": 2})
    (root / "bee").rename(root / "be\ne")
    assert refused(root).subject == "be\ne"


@pytest.mark.parametrize("more", ["train", "val"])
def test_parts_that_differ_in_classes(tmp_path: Path, more: str) -> None:
    root = tmp_path / "photos"
    for part in ("train", "val"):
        class_folder(root / part, {"ant": 2, "bee": 2} | ({"cat": 1} if part == more else {}))
    error = refused(root)
    assert error.subject == "cat" and str(error).startswith(str(root / more))


def test_class_folders_that_differ_in_case_only(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"Ant": 2, "ant": 2})
    if len(list(root.iterdir())) == 1:
        pytest.skip("this file system knows no case")
    assert refused(root).subject == root / "ant"


def test_a_folder_that_is_asked_for_like_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folder(tmp_path / "photos", {"ant": 2})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match="photos/"):
        ck.data.load("photos")
    assert ck.data.load("photos/").train.counts == (1,)


def test_a_class_of_one_image_cannot_be_divided(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 3, "bee": 1})
    with pytest.raises(DataError) as caught:
        ck.data.load(root)
    assert caught.value.subject == "bee"


def test_links(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 2})
    class_folder(tmp_path / "store", {"bee": 2})
    (root / "bee").symlink_to(tmp_path / "store" / "bee")
    (root / "ant" / "again.png").symlink_to(class_folder(tmp_path / "more", {"": 1}, seed=7) / "000.png")
    (root / "ant" / "round").symlink_to(root / "ant")
    with pytest.warns(SkippedFilesWarning):
        assert undivided(root).counts == (3, 2)  # a linked class folder, a linked file, and no folder twice
    (root / "self").symlink_to(root)
    assert refused(root).subject == root / "self"
    (root / "self").unlink()
    (root / "loop").symlink_to(root / "loop")
    with pytest.warns(SkippedFilesWarning):
        assert undivided(root).counts == (3, 2)
    (root / "ant" / "lost.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert refused(root).subject == root / "ant" / "lost.jpg"
    (root / "ant" / "lost.jpg").unlink()
    (root / "ant" / "loop.jpg").symlink_to(root / "ant" / "loop.jpg")
    assert refused(root).subject == root / "ant" / "loop.jpg"


@pytest.mark.parametrize(
    ("link", "target"),
    [("val", "train"), ("val/ant", "train/ant"), ("train/bee", "train/ant"), ("val/ant", "train")],
)
def test_one_folder_in_two_classes_or_parts(tmp_path: Path, link: str, target: str) -> None:
    root = tmp_path / "photos"
    for part in ("train", "val"):
        class_folder(root / part, {"ant": 2, "bee": 2})
    shutil.rmtree(root / link)
    (root / link).symlink_to(root / target)
    assert refused(root).code == "data"


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        ("train/ant/000.png", "val/ant/9.png", False),
        ("train/ant/000.png", "train/bee/9.png", False),
        ("train/ant/000.png", "val/bee/9.png", False),
        ("train/ant/000.png", "train/ant/9.png", True),
        ("val/ant/000.png", "val/ant/9.png", True),
        ("store.png", "val/ant/9.png", True),
    ],
)
def test_one_file_in_two_classes_or_parts(
    tmp_path: Path, link: Callable[[Path, Path], None], source: str, target: str, fits: bool
) -> None:
    root = tmp_path / "photos"
    for part in ("train", "val"):
        class_folder(root / part, {"ant": 2, "bee": 2})
    class_folder(tmp_path / "more", {"": 1}, seed=7)
    (tmp_path / "more" / "000.png").rename(root / "store.png")
    link(root / source, root / target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        if fits:
            data = ck.data.load(root)
            assert len(data.train) + len(data.test) == 9
        else:
            assert refused(root).subject == root / target


def test_one_file_by_two_links_and_in_a_linked_folder(tmp_path: Path) -> None:
    root, store = tmp_path / "photos", class_folder(tmp_path / "store", {"x": 2}, seed=9)
    for part in ("train", "val"):
        class_folder(root / part, {"ant": 2})
        (root / part / "ant" / "7.png").symlink_to(store / "x" / "000.png")
    assert refused(root).subject == root / "val" / "ant" / "7.png"
    for part in ("train", "val"):
        (root / part / "ant" / "7.png").unlink()
        (root / part / "ant" / "more").symlink_to(store / "x")
    assert refused(root).subject == root / "val" / "ant" / "more" / "000.png"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_one_file_twice_where_a_share_is_held_out(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 3, "bee": 3})
    link(root / "ant" / "000.png", root / "ant" / "again.png")
    assert refused(root).subject == root / "ant" / "again.png"


def test_names_that_macos_decomposed(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    for part, name in (("train", composed), ("val", decomposed)):
        class_folder(tmp_path / "photos" / part, {name: 2, "dog": 2, "caff": 1})
    if not (tmp_path / "photos" / "val" / composed).is_dir():
        with pytest.warns(DataWarning, match="Unicode normalization"):
            data = ck.data.load(tmp_path / "photos")
        assert data.classes == ("caff", composed, "dog")
        class_folder(tmp_path / "photos" / "val", {composed: 2})
        error = refused(tmp_path / "photos" / "val")
        assert error.subject == tmp_path / "photos" / "val" / composed and "Unicode" in str(error)
    (tmp_path / "photos" / "train" / "classes.txt").write_text(f"{decomposed} coffee\n")
    assert undivided(tmp_path / "photos" / "train").classes == ("caff", "coffee", "dog")


def test_a_class_folder_that_is_not_utf8(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 2, "bee": 2})
    try:
        os.rename(os.fsencode(root / "bee"), os.fsencode(root) + b"/caf\xe9")
    except OSError:
        pytest.skip("this file system takes texts only")
    error = refused(root)
    assert error.subject == os.fsdecode(b"caf\xe9") and "UTF-8" in str(error)


def test_names_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "f\u00eate", {"caf\u00e9": 3, "dog": 3})
    paths = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.png"))]
    (root / "list.csv").write_text(
        "path,label\n" + "".join(f"{path},{path[:3]}\n" for path in paths), encoding="utf-8"
    )
    program = (
        "import sys, compatkit as ck\n"
        "for path in sys.argv[1:]:\n"
        "    data = ck.data.load(path)\n"
        "    print(ascii((data.name, data.classes, data.train.counts, data.train.image(0).size)))\n"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(root), str(root / "list.csv")],
        env=os.environ | plain,
        capture_output=True,
        text=True,
        check=False,
    )
    first = ascii(("f\u00eate", ("caf\u00e9", "dog"), (2, 2), (12, 10)))
    assert done.stdout.splitlines() == [first, ascii(("list", ("caf", "dog"), (2, 2), (13, 9)))], done.stderr


def test_files_that_the_system_does_not_let_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 2, "bee": 2})
    result = undivided(root)
    read = Path.read_bytes

    def refuse(self: Path) -> bytes:
        if self.name == "001.png":
            raise PermissionError(13, os.strerror(13), str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert result.image(0).size == (13, 9)
    with pytest.raises(EnvironmentFailure) as caught:
        result.image(1)
    assert caught.value.subject == root / "ant" / "001.png"
    monkeypatch.setattr(os, "scandir", lambda folder: refuse(Path("001.png")))
    with pytest.raises(EnvironmentFailure) as caught:
        read_folder(root)
    assert caught.value.subject == root


def test_what_is_no_file_is_left_out_and_never_waited_for(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 2})
    os.mkfifo(root / "ant" / "pipe.jpg")
    (root / "ant" / "folder.jpg").mkdir()
    with pytest.warns(SkippedFilesWarning):
        result = undivided(root)
    assert result.counts == (2,)
    (root / "ant" / "001.png").unlink()
    os.mkfifo(root / "ant" / "001.png")
    with pytest.raises(DataError) as caught:
        result.image(1)
    assert caught.value.subject == root / "ant" / "001.png"


def test_a_folder_that_changes_after_it_was_listed(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 3})
    result = undivided(root)
    (root / "ant" / "001.png").unlink()
    (root / "ant" / "003.png").write_bytes(encoded(photo(5, 5)))
    assert len(result) == 3
    for ask in (lambda: result.image(1), lambda: result.digest):
        with pytest.raises(DataError) as caught:
            ask()
        assert caught.value.subject == root / "ant" / "001.png"
    (root / "ant" / "001.png").mkdir()
    with pytest.raises(DataError):
        result.image(1)
    assert undivided(root).counts == (3,)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"käfer 1": 2})
    try:
        shutil.copyfile(root / "käfer 1" / "000.png", os.fsencode(root / "käfer 1") + b"/\xff\xfe.png")
    except OSError:
        pytest.skip("this file system takes texts only")
    result = undivided(root)
    assert len(result) == 3 and result.image(2).size == (13, 9) and len(set(result.image_digests)) == 2


def test_listing_tells_how_far_it_is(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 3, "bee": 2})
    message: list[tuple[int, int, str]] = []
    ck.data.load(root, progress=lambda *news: message.append(news))
    assert message == [(1, 2, "ant"), (2, 2, "bee")]


def test_paths_of_many_files_are_one_piece_of_bytes(tmp_path: Path) -> None:
    paths = [f"{'x' * (place % 7)}/{place}.png" for place in range(50)]
    images = image_files(tmp_path, paths)
    assert [images.reader.name(place) for place in range(50)] == [str(tmp_path / path) for path in paths]
    assert np.array_equal(images.take(np.array([4, 2])).positions, [4, 2])
