"""Values of other than 8 bits: read by the scale of their file, or refused; never black, white or inverted."""

from __future__ import annotations

import io

import numpy as np
import pytest
from photos import encoded, raw_tiff
from PIL import Image

from compatkit.data.decoding import decode, to_rgb
from compatkit.errors import DamagedImage, DataError
from compatkit.evaluation.inputs import arrays_of

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 16))
PICTURE[0, :2] = 0, 255


def read(data: bytes) -> np.ndarray:
    pixels = np.asarray(decode(data, "it"))
    assert pixels.shape == (12, 16, 3)
    return pixels.astype(int)


def ppm(kind: bytes, most: int, values: np.ndarray) -> bytes:
    return b"%s 16 12 %d\n" % (kind, most) + values.astype(">u2").tobytes()


def inked(values: np.ndarray) -> np.ndarray:
    """Return the colors of gray in four inks."""
    return np.stack([255 - values] * 3 + [np.zeros_like(values)], axis=2)


SIXTEEN = (PICTURE * 257).astype(np.uint16)
TWELVE = np.rint(PICTURE * 4095 / 255).astype(np.uint16)
COLOR = np.stack([SIXTEEN, SIXTEEN[::-1], SIXTEEN[:, ::-1]], axis=2)
READ: dict[str, bytes] = {
    "16 bits": raw_tiff(SIXTEEN),
    "16 bits, packed": encoded(Image.fromarray(SIXTEEN), "TIFF", compression="tiff_lzw"),
    "16 bits, white is zero": raw_tiff(65535 - SIXTEEN, 0),
    "8 bits, white is zero": raw_tiff((255 - PICTURE).astype(np.uint8), 0),
    "16 bits, range stated": raw_tiff(SIXTEEN, t280=0, t281=65535),
    "12 bits in 16, stated": raw_tiff(TWELVE, t281=4095),
    "12 bits in 16, stated otherwise": raw_tiff(TWELVE, t340=0, t341=4095),
    "12 bits in 16, stated, white is zero": raw_tiff(4095 - TWELVE, 0, t280=0, t281=4095),
    "10 bits in 16, stated": raw_tiff(np.rint(PICTURE * 1023 / 255).astype(np.uint16), t281=1023),
    "32 bits, 8 stated": raw_tiff(PICTURE.astype(np.uint32), t280=0, t281=255),
    "32 bits, signed, 16 stated": raw_tiff(SIXTEEN.astype(np.int32), kind=2, t340=0, t341=65535),
    "16 bits, signed, 12 stated": raw_tiff(TWELVE.astype(np.int16), kind=2, t340=0, t341=4095),
    "floats": raw_tiff((PICTURE / 255).astype(np.float32), kind=3),
    "floats, white is zero": raw_tiff((1 - PICTURE / 255).astype(np.float32), 0, kind=3),
    "floats of 255, stated": raw_tiff(PICTURE.astype(np.float32), kind=3, t340=0.0, t341=255.0),
    "PNG of 16 bits": encoded(Image.fromarray(SIXTEEN)),
    "PGM of 16 bits": encoded(Image.fromarray(SIXTEEN), "PPM"),
    "PGM of 12 bits": ppm(b"P5", 4095, TWELVE),
    "four inks": raw_tiff(inked(PICTURE).astype(np.uint8), 5),
    "four inks of 16 bits": raw_tiff((inked(PICTURE) * 257).astype(np.uint16), 5),
}


@pytest.mark.parametrize("what", READ)
def test_a_file_is_read_by_its_own_scale(what: str) -> None:
    result = read(READ[what])
    assert np.abs(result - PICTURE[..., None]).max() <= 1, what


def test_colors_of_16_bits_are_their_upper_8() -> None:
    assert np.array_equal(read(raw_tiff(COLOR, 2)), COLOR // 256)
    assert np.array_equal(read(ppm(b"P6", 65535, COLOR)), COLOR // 257)
    assert np.abs(read(ppm(b"P6", 4095, COLOR // 16)) - COLOR // 257).max() <= 1


FULL = PICTURE / 255
REFUSED: dict[str, bytes] = {
    "floats of 0 to 255": raw_tiff(PICTURE.astype(np.float32), kind=3),
    "floats below 0": raw_tiff((FULL * 2 - 1).astype(np.float32), kind=3),
    "floats a bit above 1": raw_tiff((FULL * 1.02).astype(np.float32), kind=3),
    "floats with NaN": raw_tiff(np.where(PICTURE > 200, np.nan, FULL).astype(np.float32), kind=3),
    "floats with infinity": raw_tiff(np.where(PICTURE > 200, np.inf, FULL).astype(np.float32), kind=3),
    "floats, extremes stated": raw_tiff(PICTURE.astype(np.float32), kind=3, t340=3.5, t341=251.25),
    "floats beyond what is stated": raw_tiff((PICTURE * 4).astype(np.float32), kind=3, t340=0.0, t341=255.0),
    "32 bits": raw_tiff(PICTURE.astype(np.uint32)),
    "32 bits, signed": raw_tiff((PICTURE - 128).astype(np.int32), kind=2),
    "16 bits, signed": raw_tiff((SIXTEEN.astype(int) - 32768).astype(np.int16), kind=2),
    "8 bits, signed": raw_tiff((PICTURE - 128).astype(np.int8), kind=2),
    "14 bits in 16": raw_tiff((PICTURE * 64).astype(np.uint16)),
    "12 bits in 16": raw_tiff(TWELVE),
    "12 bits in 16, white is zero": raw_tiff(4095 - TWELVE, 0),
    "12 bits in 16, 16 stated": raw_tiff(TWELVE, t281=65535),
    "10 bits in 16, big-endian": encoded(Image.fromarray((PICTURE * 4).astype(np.uint16)), "PPM"),
    "12 bits in a PNG of 16": encoded(Image.fromarray(TWELVE)),
    "12 bits in colors of 16": raw_tiff(COLOR // 16, 2),
    "12 bits in a PPM of 16": ppm(b"P6", 65535, COLOR // 16),
    "extremes of 16 bits stated": raw_tiff(SIXTEEN // 2, t280=100, t281=40_000),
    "extremes of 8 bits stated": raw_tiff((PICTURE // 2).astype(np.uint8), t280=0, t281=120),
    "7 bits of 8 stated": raw_tiff((PICTURE // 2).astype(np.uint8), t281=127),
    "more than stated": raw_tiff(SIXTEEN, t281=4095),
    "a table of colors of 8 bits": b"",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_contradicts_its_scale_is_refused(what: str) -> None:
    data = REFUSED[what]
    if not data:
        image = Image.fromarray(PICTURE.astype(np.uint8)).convert("P")
        whole = encoded(image, "TIFF")
        with Image.open(io.BytesIO(whole)) as opened:
            table = opened.tag_v2[320]
        wide = np.array(table, dtype="<u2").tobytes()
        assert wide in whole and decode(whole, "it")
        data = whole.replace(wide, (np.array(table, dtype="<u2") // 257).tobytes())
    with pytest.raises(DamagedImage) as caught:
        decode(data, "it.tif")
    assert (caught.value.code, caught.value.subject) == ("damaged-image", "it.tif") and caught.value.reason


def test_a_black_image_is_no_contradiction() -> None:
    assert not read(raw_tiff(np.zeros((12, 16), dtype=np.uint16))).any()
    assert not read(raw_tiff(np.zeros((12, 16, 3), dtype=np.uint16), 2)).any()


ARRAYS = {
    "16 bits": SIXTEEN,
    "12 bits in 16": TWELVE,
    "floats": FULL.astype(np.float32),
    "floats of 0 to 255": PICTURE.astype(np.float32),
    "floats with NaN": np.where(PICTURE > 200, np.nan, FULL).astype(np.float32),
    "32 bits": PICTURE.astype(np.int32),
    "signed": (PICTURE - 128).astype(np.int8),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_an_array_and_a_pillow_image_are_taken_as_the_file_of_the_same_numbers(what: str) -> None:
    values = ARRAYS[what]
    kind = {"f": 3, "i": 2, "u": 1}[values.dtype.kind]
    doors = [lambda: read(raw_tiff(values, kind=kind))[..., :1], lambda: next(arrays_of(values))[0]]
    if what != "signed":
        doors.append(lambda: np.asarray(to_rgb(Image.fromarray(values), "it"))[..., :1])
    batches = []
    for door in doors:
        try:
            batches.append(door().astype(int))
        except ValueError:
            raise
        except Exception as error:
            assert isinstance(error, DataError), error
            batches.append(None)
    if what in ("16 bits", "floats"):
        assert all(np.array_equal(batch, batches[0]) for batch in batches)
    else:
        assert all(batch is None for batch in batches)
