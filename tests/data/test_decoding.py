"""What an image costs follows from its file and the wanted size, whatever its header says."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from photos import class_folder, encoded, photo
from PIL import Image
from test_foreign_files import spent

import compatkit as ck
from compatkit.contracts.contract import Data
from compatkit.data.decoding import ANY_FILE, PER_BYTE, decode
from compatkit.data.lazy import ImageResize, apply_steps, resized_image
from compatkit.data.summary import summarize
from compatkit.errors import DamagedImage
from compatkit.evaluation.inputs import unread
from compatkit.evaluation.preprocessing import fitted

DATA = Data((32, 32), "RGB", (0.5,) * 3, (0.5,) * 3, crop_pct=0.875, crop_mode="center")


def png(width: int, height: int, bits: int = 8, kind: int = 2, more: bytes = b"") -> bytes:
    """Return a black PNG."""
    row = 1 + (width * bits * {0: 1, 2: 3, 3: 1, 6: 4}[kind] + 7) // 8
    pack = zlib.compressobj(9)
    data = b"".join(pack.compress(bytes(row)) for _ in range(height)) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def tiff(width: int, height: int, tile: int = 0) -> bytes:
    """Return a black TIFF, packed by deflate; of one tile of so many pixels a side, if that is not 0."""
    data = zlib.compress(bytes(tile * tile or width * height), 9)
    fields = [(256, width), (257, height), (258, 8), (259, 8), (262, 1), (277, 1)]
    fields += (
        [(322, tile), (323, tile), (324, 8), (325, len(data))]
        if tile
        else [(273, 8), (278, height), (279, len(data))]
    )
    rows = b"".join(struct.pack("<HHII", number, 4, 1, value) for number, value in sorted(fields))
    return (
        b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(fields)) + rows + bytes(4)
    )


def scans(count: int) -> bytes:
    data = encoded(Image.new("L", (2000, 2000), 128), "JPEG", progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * count + data[-2:]


def frames(format: str, count: int) -> bytes:
    buffer = io.BytesIO()
    images = [photo(40, 40, seed=seed) for seed in range(count)]
    images[0].save(buffer, format, save_all=True, append_images=images[1:])
    return buffer.getvalue()


def texts(count: int, size: int) -> bytes:
    """Return compressed text chunks of ``size`` zero bytes each."""
    packed = zlib.compress(bytes(size), 9)
    return b"".join(chunk(b"zTXt", b"a%d\0\0" % number + packed) for number in range(count))


BOMBS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: png(11_000, 11_000),
    "PNG of one bit": lambda: png(11_000, 11_000, 1, 0),
    "PNG of 16 bits": lambda: png(11_000, 11_000, 16, 0),
    "TIFF": lambda: tiff(11_000, 11_000),
    "a tile of a small TIFF": lambda: tiff(16, 16, 20_000),
    "GIF": lambda: encoded(Image.new("P", (9_000, 9_000)), "GIF"),
    "WebP": lambda: encoded(Image.new("RGB", (9_000, 9_000)), "WEBP", lossless=True, method=0),
    "BMP that is cut": lambda: (
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 99, 0, 0, 54, 40, 11_000, 11_000, 1, 24, *[0] * 6)
    ),
    "JPEG of many scans": lambda: scans(2000),
    "a text of 100 megabytes": lambda: png(20, 20, more=texts(1, 10**8)),
    "300 texts of a megabyte": lambda: png(20, 20, more=texts(300, 10**6)),
    "PPM that is read value by value": lambda: b"P6\n4000 3000\n4095\n" + bytes(10**6),
}
SOUND: dict[str, Callable[[], bytes]] = {
    "a line across": lambda: png(100_000, 1),
    "a line down": lambda: png(1, 100_000),
    "frames of a GIF": lambda: frames("GIF", 200),
    "frames of a WebP": lambda: frames("WEBP", 100),
    "frames of a PNG": lambda: frames("PNG", 100),
    "pages of a TIFF": lambda: frames("TIFF", 300),
    "a flat PNG": lambda: png(2000, 2000),
}


def prepared(place: Path) -> None:
    for _, read in unread(place):
        fitted(read(), DATA)


def trained_on(place: Path) -> None:
    from compatkit.data.imagefiles import image_files

    images = image_files(place.parent, [place.name]).apply(ImageResize((32, 32), "bilinear", 0.875, "center"))
    images.read([0])


def resident(place: Path) -> None:
    with Image.open(place) as image:
        fitted(np.asarray(image.convert("RGB"))[None], DATA)


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize("what", BOMBS)
def test_a_file_that_claims_much_costs_little(tmp_path: Path, what: str) -> None:
    (tmp_path / "it.png").write_bytes(BOMBS[what]())
    for door in (prepared, trained_on):
        result, seconds, megabytes = spent(door, tmp_path / "it.png")
        assert result == "damaged-image" and seconds < 2 and megabytes < 120, (result, seconds, megabytes)


@pytest.mark.parametrize("what", SOUND)
def test_what_the_wanted_size_and_many_frames_cost(tmp_path: Path, what: str) -> None:
    (tmp_path / "it.png").write_bytes(SOUND[what]())
    for door in (prepared, trained_on, *([resident] if "line" in what else [])):
        result, seconds, megabytes = spent(door, tmp_path / "it.png")
        assert result == "accepted" and seconds < 2 and megabytes < 120, (result, seconds, megabytes)


def across(place: Path) -> None:
    data = Data((224, 224), "RGB", (0.5,) * 3, (0.5,) * 3, crop_pct=0.875, crop_mode="center")
    fitted(np.zeros((1, 1, 300_000, 3), dtype=np.uint8), data)
    fitted(np.zeros((1, 300_000, 1, 3), dtype=np.uint8), data)


def test_a_line_of_pixels_in_memory(tmp_path: Path) -> None:
    result, seconds, megabytes = spent(across, tmp_path)
    assert result == "accepted" and seconds < 3 and megabytes < 250, (result, seconds, megabytes)


def test_a_large_image_needs_bytes_of_its_own() -> None:
    side = int(ANY_FILE**0.5)
    flat = png(side, side, 8, 0)
    assert len(flat) * PER_BYTE < side**2 and decode(flat, "it").size == (side, side)
    above = png(side + 1, side, 8, 0)
    with pytest.raises(DamagedImage):
        decode(above, "it")
    explained = above[:-12] + chunk(b"prVt", os.urandom(side**2 // PER_BYTE)) + above[-12:]
    assert decode(explained, "it").size == (side + 1, side)


@pytest.mark.parametrize("shape", [(3, 900), (900, 3), (1, 5000), (40, 4001), (4001, 41)])
def test_the_middle_of_a_long_image_is_that_of_the_whole(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = photo(*shape)
    for kernel in ("nearest", "bilinear", "bicubic", "lanczos"):
        step = ImageResize((24, 24), kernel, 0.9, "center")
        whole = np.asarray(resized_image(image, step)).astype(int)
        with monkeypatch.context() as patch:
            patch.setattr("compatkit.data.lazy.LARGEST_SCALED", 0)
            part = np.asarray(apply_steps(image, [step])).astype(int)
        assert part.shape == (24, 24, 3) and np.abs(whole - part).max() <= 2, kernel


@pytest.mark.filterwarnings("ignore:Image size")
def test_a_survey_and_a_load_that_skips_name_them(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 4, "bee": 4}, size=(12, 12))
    bombs = [what for what in BOMBS if what not in ("PNG", "PNG of 16 bits", "GIF")]
    for number, what in enumerate(bombs):
        (root / "ant" / f"bomb{number}.png").write_bytes(BOMBS[what]())
    data = ck.data.load(f"{root}/")
    names = {Path(name).name for part in summarize([data.train, data.test]).parts for name in part.damaged}
    assert names == {f"bomb{number}.png" for number in range(len(bombs))}
    assert ck.data.load(f"{root}/", damaged="skip").train.damaged == len(bombs)
