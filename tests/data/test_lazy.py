"""Images that are read when they are asked for: one rule for all kinds of files, timm's resize, the array path."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from photos import class_folder, encoded, photo, raw_tiff
from PIL import Image

from compatkit.data.damaged import damaged_mask
from compatkit.data.decoding import LARGEST_PIXELS, decode
from compatkit.data.folders import read_folder
from compatkit.data.imagefiles import image_files
from compatkit.data.lazy import ImageResize, LazyImages, pixels_of
from compatkit.data.split import Split
from compatkit.data.summary import summarize
from compatkit.errors import DamagedImage, DataError

RAMP = (np.arange(35).reshape(5, 7) * 1872).astype(np.uint16)


def rgb(data: bytes) -> np.ndarray:
    image = decode(data, "it")
    assert image.mode == "RGB"
    return np.asarray(image)


def gray(values: np.ndarray) -> np.ndarray:
    return np.repeat(np.asarray(values, dtype=np.uint8)[..., None], 3, axis=2)


@pytest.mark.parametrize("turn", range(1, 9))
def test_the_exif_orientation_is_applied(turn: int) -> None:
    image = photo(6, 9)
    exif = Image.Exif()
    exif[0x0112] = turn
    stored = encoded(image, exif=exif)
    moves = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270"}
    moves |= {7: "TRANSVERSE", 8: "ROTATE_90"}
    wanted = image.transpose(Image.Transpose[moves[turn]]) if turn > 1 else image
    assert np.array_equal(rgb(stored), np.asarray(wanted))


def test_gray_and_bilevel_and_palettes_take_their_colors() -> None:
    values = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
    assert np.array_equal(rgb(encoded(Image.fromarray(values))), gray(values))
    assert np.array_equal(rgb(encoded(Image.fromarray(values > 100))), gray((values > 100) * 255))
    few = photo(5, 7).quantize(8)
    assert np.array_equal(rgb(encoded(few)), np.asarray(few.convert("RGB")))
    assert np.array_equal(rgb(encoded(few, transparency=bytes([0, 128]))), np.asarray(few.convert("RGB")))
    assert np.array_equal(rgb(encoded(few, "GIF")), np.asarray(few.convert("RGB")))


def test_transparency_is_dropped_and_not_blended() -> None:
    image = photo(5, 7)
    for alpha in (0, 90, 255):
        image.putalpha(alpha)
        assert np.array_equal(rgb(encoded(image)), np.asarray(image)[..., :3])
        pale = image.convert("LA")
        assert np.array_equal(rgb(encoded(pale)), gray(np.asarray(pale)[..., 0]))


def test_four_inks_become_colors_as_pillow_does_it() -> None:
    inks = photo(5, 7).convert("CMYK")
    assert np.array_equal(rgb(encoded(inks, "TIFF")), np.asarray(inks.convert("RGB")))
    stored = encoded(inks, "JPEG", quality=95)
    assert rgb(stored).shape == (5, 7, 3)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_divided_by_257(format: str) -> None:
    assert np.array_equal(rgb(encoded(Image.fromarray(RAMP), format)), gray(RAMP // 257))


SIZES = [(37, 53), (53, 37), (224, 225), (31, 400), (301, 299), (20, 19)]


@pytest.mark.parametrize(("size", "crop_pct"), [((32, 32), 0.875), ((24, 40), 0.9), ((33, 33), 1.0)])
def test_center_crops_are_those_of_timm(tmp_path: Path, size: tuple[int, int], crop_pct: float) -> None:
    from timm.data import create_transform

    (tmp_path / "p").mkdir()
    images = [photo(*shape, seed=seed) for seed, shape in enumerate(SIZES)]
    for number, image in enumerate(images):
        (tmp_path / "p" / f"{number}.png").write_bytes(encoded(image))
    lazy = image_files(tmp_path, [f"p/{number}.png" for number in range(len(images))])
    split = Split(lazy, np.zeros(len(images), dtype=np.int64), ("a",), "p/train")
    result = split.resized(size, interpolation="bicubic", crop_pct=crop_pct, crop_mode="center")
    wanted = create_transform(
        (3, *size),
        is_training=False,
        use_prefetcher=True,
        interpolation="bicubic",
        crop_pct=crop_pct,
        crop_mode="center",
    )
    for number, image in enumerate(images):
        assert np.array_equal(result.read([number])[0].transpose(2, 0, 1), wanted(image)), SIZES[number]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Split, Split]:
    """Return the same images lazily and as an array."""
    class_folder(tmp_path / "photos", {"ant": 5, "bee": 4, "cat": 3}, size=(14, 11))
    lazy = read_folder(tmp_path / "photos")
    assert isinstance(lazy, Split)
    pixels = np.stack([lazy.images.pixels(place) for place in range(len(lazy))])  # type: ignore[union-attr]
    return lazy, Split(pixels, lazy.labels, lazy.classes, lazy.name)


def whole(split: Split) -> np.ndarray:
    if split.lazy and split.size is None:
        return np.stack([pixels_of(split.image(place)) for place in range(len(split))])
    return split.read(range(len(split)))


@pytest.mark.parametrize(
    "change",
    [
        lambda split: split.subset(7),
        lambda split: split.subset(7, seed=3),
        lambda split: split.take([9, 2, 4]),
        lambda split: split.halves()[0],
        lambda split: split.halves()[1].subset(3),
        lambda split: split.of_classes(["cat", "ant"]),
        lambda split: split.shifted(hue=0.3, brightness=0.7, blur=1.2),
        lambda split: split.shifted(hue=0.3).converted("RGB"),
        lambda split: split.subset(6).shifted(blur=0.5).of_classes(["bee"]),
        lambda split: split.unlabeled().renamed("x"),
    ],
)
def test_changes_stay_lazy_and_equal_those_of_an_array(both: tuple[Split, Split], change: object) -> None:
    lazy, array = (change(side) for side in both)  # type: ignore[operator]
    assert lazy.lazy and not array.lazy
    assert np.array_equal(whole(lazy), whole(array))
    assert np.array_equal(lazy.labels, array.labels)
    assert (lazy.classes, lazy.name, lazy.sample) == (array.classes, array.name, array.sample)


@pytest.mark.parametrize(
    "change",
    [
        lambda split: split.converted("L"),
        lambda split: split.converted("L").converted("RGB"),
        lambda split: split.shifted(hue=0.3).converted("L"),
        lambda split: split.converted("L").shifted(brightness=0.5),
        lambda split: split.resized((9, 8)).converted("L"),
        lambda split: split.resized((9, 8)),
        lambda split: split.converted("L").resized((20, 8)),
    ],
)
def test_gray_and_size_differ_from_those_of_an_array_by_roundings(
    both: tuple[Split, Split], change: object
) -> None:
    lazy, array = (change(side) for side in both)  # type: ignore[operator]
    assert (lazy.channels, lazy.lazy) == (array.channels, True)
    assert np.abs(whole(lazy).astype(int) - whole(array)).max() <= 2


def test_gray_images_have_no_colors_again(both: tuple[Split, Split]) -> None:
    again = whole(both[0].converted("L").converted("RGB"))
    assert np.array_equal(again, np.repeat(whole(both[0].converted("L")), 3, axis=3))


def test_a_hue_of_gray_images_is_refused_when_it_is_asked_for(both: tuple[Split, Split]) -> None:
    for split in both:
        with pytest.raises(DataError, match="no hue"):
            split.converted("L").shifted(hue=0.1)


def test_the_digest_tells_what_is_done_to_images(both: tuple[Split, Split]) -> None:
    lazy = both[0]
    changed = [
        lazy,
        lazy.converted("L"),
        lazy.converted("L").converted("RGB"),
        lazy.resized((9, 9)),
        lazy.resized((9, 9), interpolation="bicubic"),
        lazy.resized((9, 9), crop_mode="center"),
        lazy.shifted(blur=1.0),
        lazy.take(range(5)),
        lazy.of_classes(["ant", "bee"]),
        Split(lazy.images, lazy.labels[::-1].copy(), lazy.classes, lazy.name),
        Split(lazy.images, lazy.labels, ("ant", "bee", "dog"), lazy.name),
    ]
    assert len({entry.digest for entry in changed}) == len(changed)
    assert lazy.renamed("other").digest == lazy.digest


def test_what_the_digest_says_of_steps_names_no_class(both: tuple[Split, Split]) -> None:
    split = both[0].converted("L").resized((9, 8), crop_mode="center").shifted(blur=1.0).shrunk((4, 4))
    assert split.images.json_steps == [
        "L",
        ["resize", (9, 8), "bilinear", 1.0, "center"],
        ["shift", 0.0, 1.0, 1.0],
        ["shrink", (4, 4), "bilinear", 1.0],
    ]


def test_equal_files_have_equal_digests_and_others_do_not(both: tuple[Split, Split]) -> None:
    assert len(set(both[0].image_digests)) == len(both[0])
    doubled = both[0].images.take(np.array([0, 0, 1]))  # type: ignore[union-attr]
    first, second, third = doubled.digests()
    assert first == second != third


def test_images_of_their_own_sizes_are_no_array(tmp_path: Path) -> None:
    split = read_folder(class_folder(tmp_path / "photos", {"ant": 3, "bee": 2}))
    assert isinstance(split, Split) and split.size is None and "own sizes" in repr(split)
    with pytest.raises(DataError, match=r"resized\(\(224, 224\)"):
        split.read([0])
    assert split.resized((6, 7)).read([2, 0]).shape == (2, 6, 7, 3)


def test_statistics_are_those_of_the_pixels_that_were_read(both: tuple[Split, Split]) -> None:
    assert both[0].statistics() == both[1].statistics()


class Held:
    """A reader of bytes in memory."""

    def __init__(self, *files: bytes) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def name(self, position: int) -> str:
        return f"file {position}"

    def read(self, position: int) -> bytes:
        return self.files[position]

    def digests(self, positions: np.ndarray, progress: object = None) -> np.ndarray:
        result = (hashlib.blake2b(self.files[position], digest_size=16).digest() for position in positions)
        return np.frombuffer(b"".join(result), dtype="V16")


JPEG = encoded(photo(40, 30), "JPEG")
PNG = encoded(photo(40, 30))
DAMAGED = {
    "empty": b"",
    "text": b"no image at all",
    "cut JPEG": JPEG[: len(JPEG) // 2],
    "head of a JPEG": JPEG[:20],
    "cut PNG": PNG[: len(PNG) // 2],
    "flipped bits": PNG[:60] + bytes(255 - entry for entry in PNG[60:90]) + PNG[90:],
    "TIFF of nothing": b"II*\0junkjunkjunk",
    "PPM of nothing": b"P6\n3 3\n",
    "GIF of nothing": b"GIF89a",
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_image_is_named(what: str) -> None:
    split = Split(LazyImages(Held(PNG, DAMAGED[what]), np.arange(2)), np.array([0, 0]), ("a",), "x")
    assert split.image(0).size == (30, 40)
    with pytest.raises(DataError, match="file 1 cannot be read as an image") as caught:
        split.resized((4, 4)).read([0, 1])
    assert caught.value.subject == "file 1"
    assert " at 0x" not in str(caught.value)


EIGHT = photo(12, 16)
PREMULTIPLIED = np.dstack([np.asarray(EIGHT.convert("L")) // 2, np.full((12, 16), 128, dtype=np.uint8)])
MODES = {
    "La": raw_tiff(PREMULTIPLIED, t338=1),
    "LA": raw_tiff(PREMULTIPLIED, t338=2),
    "RGBa": raw_tiff(np.dstack([np.asarray(EIGHT) // 2, PREMULTIPLIED[..., 1:]]), 2, t338=1),
    "LAB": raw_tiff(np.asarray(EIGHT), 8),
    "YCbCr": raw_tiff(np.asarray(EIGHT), 6),
    "PA": encoded(EIGHT.convert("L").convert("PA"), "TIFF"),
    "CMYK": encoded(EIGHT.convert("CMYK"), "TIFF"),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_decoded_at_every_door(mode: str) -> None:
    split = Split(LazyImages(Held(PNG, MODES[mode]), np.arange(2)), np.array([0, 0]), ("a",), "x")
    assert split.image(1).mode == "RGB" and not damaged_mask(split).any()
    part = summarize([split]).parts[0]
    assert part.damaged == () and sum(part.kinds.values()) == 2


def test_what_cannot_be_converted_is_a_damaged_image_at_every_door(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(image: Image.Image, mode: str) -> Image.Image:
        raise ValueError(f"conversion from {image.mode} to {mode} not supported")

    split = Split(LazyImages(Held(PNG, MODES["CMYK"]), np.arange(2)), np.array([0, 0]), ("a",), "x")
    monkeypatch.setattr(Image.Image, "convert", convert)
    with pytest.raises(DamagedImage) as caught:
        split.image(1)
    assert caught.value.subject == "file 1" and "CMYK" in caught.value.reason
    assert damaged_mask(split).tolist() == [False, True] and summarize([split]).parts[0].damaged == (
        "file 1",
    )


def test_what_is_premultiplied_is_divided_by_its_transparency() -> None:
    wanted = np.asarray(EIGHT).astype(int)
    assert np.abs(rgb(MODES["RGBa"]).astype(int) - wanted).max() <= 2
    assert np.abs(rgb(MODES["La"]).astype(int) - np.asarray(EIGHT.convert("L"))[..., None]).max() <= 2


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of some bytes that claims to be large."""
    head = struct.pack(">II5B", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    made = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize("side", [12_000, 2**15, 2**31 - 1])
def test_a_small_file_of_many_pixels_is_not_decoded(side: int) -> None:
    assert side**2 > LARGEST_PIXELS
    with pytest.raises(DataError) as caught:
        decode(bomb(side, side), "bomb.png")
    assert caught.value.subject == "bomb.png"


def test_resizing_is_pillows_own() -> None:
    image = photo(14, 11)
    step = ImageResize((7, 9), "lanczos", 1.0, "squash")
    split = Split(LazyImages(Held(encoded(image)), np.arange(1), (step,)), np.array([0]), ("a",), "x")
    assert np.array_equal(split.read([0])[0], np.asarray(image.resize((9, 7), Image.Resampling.LANCZOS)))
    assert split.size == (7, 9)
