"""What a data set holds, against counting by hand: sizes, kinds, damaged images, copies within and between splits."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import pytest
from photos import class_folder, encoded, photo

import compatkit as ck
from compatkit.data.split import Split
from compatkit.data.summary import FIRST, summarize
from compatkit.data.unlabeled import read_unlabeled


def array(images: np.ndarray, labels: list[int], name: str) -> Split:
    return Split(images, np.array(labels), ("a", "b"), name)


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_those_of_a_plain_list(seed: int) -> None:
    draw = np.random.default_rng(seed)
    kinds = draw.integers(0, 256, (6, 3, 4, 1)).astype(np.uint8)
    picks, labels = draw.integers(0, 6, 9).tolist(), draw.integers(0, 2, 9).tolist()
    others, theirs = draw.integers(0, 6, 7).tolist(), draw.integers(0, 2, 7).tolist()
    result = summarize([array(kinds[picks], labels, "x/train"), array(kinds[others], theirs, "x/test")])
    inside = [(picks.index(pick), place) for place, pick in enumerate(picks) if picks.index(pick) != place]
    between = [(picks.index(other), place) for place, other in enumerate(others) if other in picks]
    copies, shared = result.parts[0].copies, result.shared
    assert shared is not None and (copies.count, shared.count) == (len(inside), len(between))
    assert copies.relabeled == sum(labels[value] != labels[two] for value, two in inside)
    assert shared.relabeled == sum(labels[value] != theirs[two] for value, two in between)
    assert shared.first == tuple(
        (f"image {value} of x/train", f"image {two} of x/test") for value, two in between[:FIRST]
    )


def test_files_are_measured_as_they_are_turned(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 5, "bee": 4})
    turned = photo(6, 30).getexif()
    turned[0x0112] = 6
    (root / "ant" / "turned.jpg").write_bytes(encoded(photo(6, 30), "JPEG", exif=turned))
    (root / "bee" / "gray.png").write_bytes(encoded(photo(100, 3).convert("L")))
    (root / "bee" / "none.gif").write_bytes(b"GIF89a")
    data = ck.data.load(root, hold_out=0.2)
    message: list[str] = []
    result = summarize([data.train, data.test], lambda done, total, what: message.append(what))
    assert {"decoding photos/train", "decoding photos/test"} <= set(message)
    assert sum(part.images for part in result.parts) == 12
    assert [Path(entry).name for part in result.parts for entry in part.damaged] == ["none.gif"]
    for part, split in zip(result.parts, (data.train, data.test), strict=True):
        good = [
            index
            for index in range(len(split))
            if split.images.reader.name(int(split.images.positions[index])) not in part.damaged
        ]
        heights = [split.image(entry).height for entry in good]
        widths = [split.image(entry).width for entry in good]
        assert part.heights == (min(heights), median(heights), max(heights))
        assert part.widths == (min(widths), median(widths), max(widths))
        assert sum(part.kinds.values()) == len(good) and part.digest == split.digest
        assert part.classes == dict(zip(split.classes, split.counts, strict=True))


def test_nothing_that_can_be_decoded(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "photos", {"ant": 1})
    (root / "ant" / "000.png").write_bytes(b"")
    result = summarize([read_unlabeled(root / "ant")])
    assert result.parts[0].heights is None and result.parts[0].kinds == {} and result.shared is None
    assert result.parts[0].classes == {} and len(result.parts[0].damaged) == 1


def test_files_with_a_color_profile_are_counted(tmp_path: Path) -> None:
    """Profiles are not applied; those of other colors than sRGB are a kind of their own."""
    from PIL import ImageCms

    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    other = srgb.replace(b"sRGB", b"wide").replace("sRGB".encode("utf-16-be"), "wide".encode("utf-16-be"))
    root = class_folder(tmp_path / "photos", {"ant": 4}, size=(12, 12))
    for name, profile in (("same", srgb), ("wide", other)):
        for ending, format in (("jpg", "JPEG"), ("png", "PNG"), ("tif", "TIFF"), ("webp", "WEBP")):
            (root / "ant" / f"{name}.{ending}").write_bytes(
                encoded(photo(12, 12), format, icc_profile=profile)
            )
    result = summarize([read_unlabeled(root / "ant")])
    assert result.parts[0].kinds == {"RGB": 8, "RGB with a color profile": 4}
