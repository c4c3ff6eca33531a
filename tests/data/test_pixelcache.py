"""Decoded images in the cache folder: the same pixels, whole or not at all, and nothing that grows without an end."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictured import counted, photos
from PIL import Image
from small import data_set

from compatkit.data import pixelcache
from compatkit.data.pixelcache import MAX_SPLITS, decoded_once, fits, folder
from compatkit.data.split import Split
from compatkit.errors import DataError


def fitted(split: Split) -> Split:
    return split.resized((24, 32), crop_mode="center")


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return photos(tmp_path / "pets").train


@pytest.mark.parametrize("how", ["as they are", "fitted", "shrunk", "gray"])
def test_pixels_are_those_of_the_files(split: Split, how: str) -> None:
    inputs = {
        "as they are": split,
        "fitted": fitted(split),
        "shrunk": split.shrunk((16, 16), interpolation="bicubic", crop_pct=0.875),
        "gray": split.converted("L"),
    }[how]
    saved = decoded_once(inputs)
    assert saved is not None
    for position in range(len(inputs)):
        mine, theirs = saved.image(position), inputs.image(position)
        assert mine.mode == theirs.mode and np.array_equal(np.asarray(mine), np.asarray(theirs))


def test_shrunk_images_have_the_size_that_evaluation_cuts_from(split: Split) -> None:
    """As timm's ``ImageResize`` of the shorter side to floor(16 / .875), by Pillow itself."""
    small = split.shrunk((16, 16), crop_pct=0.875)
    for position in range(len(split)):
        image = split.image(position)
        short = min(image.size)
        size = tuple(int(18 * entry / short) for entry in image.size)
        expected = image.resize(size, Image.Resampling.BILINEAR)
        assert np.array_equal(np.asarray(small.image(position)), np.asarray(expected))
    assert split.shrunk((500, 500)).image(0).size == split.image(0).size
    assert data_set("a").train.shrunk((4, 4)).size == (12, 12)


def test_another_process_is_sent_a_name(split: Split) -> None:
    saved = decoded_once(split)
    assert saved is not None
    sent = bytes(ForkingPickler.dumps(saved))
    again = ForkingPickler.loads(sent)
    assert len(sent) < 1000 and np.array_equal(np.asarray(again.image(5)), np.asarray(saved.image(5)))


def test_files_are_read_once(split: Split) -> None:
    watched, seen = counted(split)
    decoded_once(fitted(watched))
    assert sorted(seen) == list(range(len(split)))
    decoded_once(fitted(watched))
    assert len(seen) == len(split)
    decoded_once(watched)
    assert len(seen) == 2 * len(split)


def test_what_is_damaged_is_written_again(split: Split) -> None:
    saved = decoded_once(split)
    assert saved is not None
    expected = np.asarray(saved.image(3))
    (place,) = (path for path in folder().iterdir() if path.is_dir())
    whole = (place / "pixels").read_bytes()
    for damage in (
        lambda: (place / "pixels").write_bytes(whole[:-5]),
        lambda: (place / "pixels").write_bytes(b""),
        lambda: (place / "sizes.npy").write_bytes(b"\x93NUMPY nothing"),
        lambda: (place / "sizes.npy").unlink(),
        lambda: np.save(place / "sizes.npy", np.ones((2, 3), dtype=np.int64)),
    ):
        damage()
        again = decoded_once(split)
        assert again is not None and np.array_equal(np.asarray(again.image(3)), expected)


def test_a_full_disk_is_one_warning(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(place: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pixelcache.os, "fsync", full)
    with pytest.warns(UserWarning, match=r"No space left.*COMPATKIT_CACHE") as caught:
        assert decoded_once(split) is None
    assert len(caught) == 1
    assert not any(path.is_dir() for path in folder().iterdir())


def test_a_damaged_image_leaves_nothing(tmp_path: Path, split: Split) -> None:
    file = tmp_path / "pets" / "train" / "dog" / "003.jpg"
    file.write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        decoded_once(split)
    assert caught.value.subject == str(file)
    assert not any(path.is_dir() for path in folder().iterdir())


def test_a_process_that_is_killed_leaves_nothing_that_is_used(tmp_path: Path, split: Split) -> None:
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from pictured import photos
from compatkit.data import pixelcache
pixelcache.os.fsync = lambda file: os._exit(9)
pixelcache.decoded_once(photos(Path({str(tmp_path / "pets")!r})).train)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    (place,) = (path for path in folder().iterdir() if path.is_dir())
    assert not (place / "sizes.npy").exists()
    saved = decoded_once(split)
    assert saved is not None and len(saved.sizes) == len(split) and saved.path == place


def test_the_splits_used_last_stay(split: Split) -> None:
    for number in range(MAX_SPLITS + 3):
        decoded_once(split.take(range(number + 1)))
        os.utime(_place(split.take(range(number + 1))), (number, number))
        decoded_once(split.take([0]))  # used all the time
    assert len([path for path in folder().iterdir() if path.is_dir()]) == MAX_SPLITS
    assert _place(split.take([0])).exists() and not _place(split.take(range(2))).exists()


def _place(split: Split) -> Path:
    import hashlib

    from compatkit.data.decoding import RULE

    return folder() / hashlib.sha256(f"{split.digest} {RULE}".encode()).hexdigest()[:32]


def test_room_is_half_of_what_is_free(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    need = len(split) * 24 * 32 * 3
    for free, enough in ((2 * need, True), (2 * need - 2, False)):
        monkeypatch.setattr(
            pixelcache.shutil, "disk_usage", lambda place, free=free: type("Usage", (), {"free": free})
        )
        assert fits(fitted(split)) == enough
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decoded_once(split) is not None


@pytest.mark.slow
def test_of_two_processes_one_writes_and_one_waits(tmp_path: Path, split: Split) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from pictured import counted, photos
from compatkit.data.pixelcache import decoded_once
split, seen = counted(photos(Path({str(tmp_path / "pets")!r})).train)
input()
assert decoded_once(split) is not None
print(len(seen))
"""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for item in running:
        assert item.stdin is not None
        item.stdin.write("\n")
        item.stdin.flush()
    read = sorted(int(entry.communicate(timeout=120)[0]) for entry in running)
    assert read == [0, len(split)]
