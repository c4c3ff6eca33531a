"""Images without labels: folders of files, packs of images alone, and what is none of these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small import data_set

from compatkit.data.split import NO_CLASSES
from compatkit.data.unlabelled import is_bare, read_unlabelled
from compatkit.errors import DataError


def write(folder: Path, images: np.ndarray, ending: str = "png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image.squeeze()).save(folder / f"{number:03}.{ending}")


def test_a_folder_gives_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    images = data_set("a", count=6).train.images
    write(tmp_path / "photos" / "b", images[3:])
    write(tmp_path / "photos" / "a", images[:3], "bmp")
    (tmp_path / "photos" / "readme.txt").write_text("no image")
    found = read_unlabelled(tmp_path / "photos")
    assert np.array_equal(found.images, images)
    assert (found.name, found.classes, found.channels) == ("photos", NO_CLASSES, "L")
    assert not found.labelled and not found.labels.any()


def test_colour_stays_colour(tmp_path: Path) -> None:
    images = data_set("a", count=4, channels=3).train.images
    write(tmp_path / "photos", images, "webp")
    assert read_unlabelled(tmp_path / "photos").channels == "RGB"


def test_a_pack_of_images_alone(tmp_path: Path) -> None:
    data = data_set("a")
    np.savez(tmp_path / "bare.npz", x_train=data.train.images)
    found = read_unlabelled(tmp_path / "bare.npz")
    assert is_bare(tmp_path / "bare.npz")
    assert found.name == "bare/train"
    assert found.digest == data.train.unlabelled().digest != data.train.digest


def test_a_whole_pack_is_not_bare_and_its_labels_are_not_looked_at(tmp_path: Path) -> None:
    data = data_set("a")
    arrays = {
        "x_train": data.train.images,
        "x_test": data.test.images,
        "y_test": data.test.labels,
        "classes": np.array(data.classes),
    }
    np.savez(tmp_path / "whole.npz", y_train=data.train.labels, **arrays)
    np.savez(tmp_path / "wrong.npz", y_train=np.array(["?"]), **arrays)
    assert not is_bare(tmp_path / "whole.npz")
    digests = {read_unlabelled(tmp_path / name).digest for name in ("whole.npz", "wrong.npz")}
    assert digests == {data.train.unlabelled().digest}
    assert not is_bare(tmp_path / "nothing.npz")


def test_labels_do_not_count_for_what_is_unlabelled() -> None:
    split = data_set("a").train
    bare = split.unlabelled()
    assert split.labelled and not bare.labelled
    assert bare.unlabelled().digest == bare.digest
    assert bare.images is split.images and bare.name == split.name


def test_bad_folders(tmp_path: Path) -> None:
    images = data_set("a", count=4).train.images
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        read_unlabelled(tmp_path / "empty")
    write(tmp_path / "sizes", images)
    Image.fromarray(images[0, :, :5, 0]).save(tmp_path / "sizes" / "9.png")
    with pytest.raises(DataError, match=r"9\.png has 12 x 5 pixels in grey.*12 x 12 pixels in grey"):
        read_unlabelled(tmp_path / "sizes")
    write(tmp_path / "kinds", images)
    Image.new("RGB", (12, 12)).save(tmp_path / "kinds" / "9.png")
    with pytest.raises(DataError, match="12 x 12 pixels in colour"):
        read_unlabelled(tmp_path / "kinds")
    write(tmp_path / "damaged", images)
    (tmp_path / "damaged" / "001.png").write_bytes(b"\x89PNG no image")
    with pytest.raises(DataError, match=r"001\.png is no readable image"):
        read_unlabelled(tmp_path / "damaged")
    write(tmp_path / "cut", images)
    whole = (tmp_path / "cut" / "002.png").read_bytes()
    (tmp_path / "cut" / "002.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"002\.png is no readable image"):
        read_unlabelled(tmp_path / "cut")
    (tmp_path / "deep").mkdir()
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(tmp_path / "deep" / "a.png")
    with pytest.raises(DataError, match="expected 8-bit grey or RGB"):
        read_unlabelled(tmp_path / "deep")
    with pytest.raises(DataError, match="There is no data set"):
        read_unlabelled(tmp_path / "nowhere")
    (tmp_path / "text.npz").write_text("no pack")
    with pytest.raises(DataError, match=r"is no \.npz file"):
        read_unlabelled(tmp_path / "text.npz")
    np.savez(tmp_path / "floats.npz", x_train=np.zeros((4, 5, 5)))
    with pytest.raises(DataError, match="images must be uint8"):
        read_unlabelled(tmp_path / "floats.npz")
