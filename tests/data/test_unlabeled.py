"""Images without labels: folders of files, packs of images alone, and what is none of these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small import data_set

from compatkit.data.split import NO_CLASSES
from compatkit.data.unlabeled import is_image_folder, is_unlabeled_pack, read_unlabeled
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
    result = read_unlabeled(tmp_path / "photos")
    assert result.lazy and np.array_equal(result.converted("L").resized((12, 12)).read(range(6)), images)
    assert (result.name, result.classes, result.size) == ("photos", NO_CLASSES, None)
    assert not result.labeled and not result.labels.any()


def test_images_of_any_size_and_kind(tmp_path: Path) -> None:
    write(tmp_path / "photos", data_set("a", count=3, channels=3).train.images, "webp")
    Image.fromarray(np.full((5, 9), 25700, dtype=np.uint16)).save(tmp_path / "photos" / "9.png")
    Image.new("RGBA", (7, 30), (1, 2, 3, 4)).save(tmp_path / "photos" / "99.tiff")
    result = read_unlabeled(tmp_path / "photos")
    assert result.channels == "RGB" and result.resized((6, 6)).read(range(5)).shape == (5, 6, 6, 3)
    assert (result.images.pixels(3) == 100).all() and result.images.pixels(4)[0, 0].tolist() == [1, 2, 3]


def test_a_folder_is_flat_unless_class_folders_divide_it(tmp_path: Path) -> None:
    image = data_set("a", count=1).train.images
    assert not is_image_folder(tmp_path / "nowhere") and not is_image_folder("digits")
    (tmp_path / "empty").mkdir()
    assert is_image_folder(tmp_path / "empty")
    write(tmp_path / "flat", image)
    assert is_image_folder(tmp_path / "flat")
    write(tmp_path / "classes" / "ant", image)
    assert not is_image_folder(tmp_path / "classes")
    write(tmp_path / "classes", image)
    assert is_image_folder(tmp_path / "classes")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.tar").write_bytes(b"")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    assert not is_image_folder(tmp_path / "shards") and not is_image_folder(tmp_path / "saved")


def test_a_pack_of_images_alone(tmp_path: Path) -> None:
    data = data_set("a")
    np.savez(tmp_path / "bare.npz", x_train=data.train.images)
    result = read_unlabeled(tmp_path / "bare.npz")
    assert is_unlabeled_pack(tmp_path / "bare.npz")
    assert result.name == "bare/train"
    assert result.digest == data.train.unlabeled().digest != data.train.digest


def test_a_pack_with_images_of_other_parts_is_not_bare(tmp_path: Path) -> None:
    images = data_set("a").train.images
    np.savez(tmp_path / "a.npz", x_train=images, x_val=images)
    assert not is_unlabeled_pack(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x_train=images, x_test=images)
    assert is_unlabeled_pack(tmp_path / "b.npz")


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
    assert not is_unlabeled_pack(tmp_path / "whole.npz")
    digests = {read_unlabeled(tmp_path / name).digest for name in ("whole.npz", "wrong.npz")}
    assert digests == {data.train.unlabeled().digest}
    assert not is_unlabeled_pack(tmp_path / "nothing.npz")


def test_labels_do_not_count_for_what_is_unlabeled() -> None:
    split = data_set("a").train
    bare = split.unlabeled()
    assert split.labeled and not bare.labeled
    assert bare.unlabeled().digest == bare.digest
    assert bare.images is split.images and bare.name == split.name


def test_bad_folders(tmp_path: Path) -> None:
    images = data_set("a", count=4).train.images
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        read_unlabeled(tmp_path / "empty")
    write(tmp_path / "damaged", images)
    for number, content in (
        (1, b"\x89PNG no image"),
        (2, (tmp_path / "damaged" / "002.png").read_bytes()[:60]),
    ):
        (tmp_path / "damaged" / f"00{number}.png").write_bytes(content)
        with pytest.raises(DataError) as caught:
            read_unlabeled(tmp_path / "damaged").image(number)
        assert caught.value.subject == str(tmp_path / "damaged" / f"00{number}.png")
    with pytest.raises(DataError, match="There is no data set"):
        read_unlabeled(tmp_path / "nowhere")
    (tmp_path / "text.npz").write_text("no pack")
    with pytest.raises(DataError, match=r"is not an \.npz file"):
        read_unlabeled(tmp_path / "text.npz")
    np.savez(tmp_path / "floats.npz", x_train=np.zeros((4, 5, 5)))
    with pytest.raises(DataError, match="images must be uint8"):
        read_unlabeled(tmp_path / "floats.npz")
