"""Names of files and folders as text: at each door, whatever the locale and however they are composed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from photos import class_folder, encoded, photo

import compatkit as ck
from compatkit.data.filenames import decode_name, encode_name
from compatkit.errors import DataError

CAFE = "caf\u00e9"
PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_names_are_composed() -> None:
    assert decode_name(unicodedata.normalize("NFD", CAFE)) == CAFE == decode_name(CAFE)
    assert decode_name("cat") == encode_name("cat") == "cat" and encode_name(CAFE) == CAFE


def test_names_that_are_not_utf8() -> None:
    for name in (os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xff")):
        with pytest.raises(DataError) as caught:
            decode_name(name, "photos")
        assert caught.value.code == "data" and caught.value.subject == name and "photos" in str(caught.value)


def make(place: Path, kind: str) -> Path:
    """Write six images in two classes whose names are not ASCII; return what loads them."""
    if kind == "folder":
        return class_folder(place / CAFE, {CAFE: 3, "dog": 3})
    place.mkdir(parents=True, exist_ok=True)
    if kind == "pack":
        images, labels = np.zeros((6, 4, 4, 3), np.uint8), np.arange(6) % 2
        arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
        np.savez(place / f"{CAFE}.npz", classes=np.array([CAFE, "dog"]), **arrays)
        return place / f"{CAFE}.npz"
    with tarfile.open(place / f"{CAFE}.tar", "w") as archive:
        for number in range(6):
            label = (CAFE, "dog")[number % 2].encode()
            for ending, data in ((".png", encoded(photo(8, 8, seed=number))), (".cls", label)):
                member = tarfile.TarInfo(f"{CAFE}-{number}{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return place / f"{CAFE}.tar"


@pytest.mark.parametrize("kind", ["folder", "pack", "shard"])
def test_every_door_under_a_locale_of_ascii(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path / kind, kind)
    program = "import sys, compatkit as ck; data = ck.data.load(sys.argv[1]); print(ascii((data.name, data.classes)))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env=os.environ | PLAIN_LOCALE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == ascii((CAFE, (CAFE, "dog"))), done.stderr


@pytest.mark.parametrize("kind", ["folder", "pack", "shard"])
def test_every_door_whose_own_name_is_not_utf8(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path / kind, kind)
    other = path.with_name(os.fsdecode(b"caf\xe9") + path.suffix)
    try:
        path.rename(other)
    except OSError:
        pytest.skip("this file system takes texts only")
    with pytest.raises(DataError) as caught:
        ck.data.load(other)
    assert caught.value.subject in (other.name, other.stem) and "UTF-8" in str(caught.value)
