"""Files from elsewhere at every door that reads them: hostile ones end soon, in little memory, in an error of ours."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import struct
import tarfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from attack import cases
from far import export, import_layout
from hostile import NAME, build, edited, kinds, put_in_place, read_everything, weights

import compatkit as ck
from compatkit.components.checkpoints.exported import DESCRIPTION, exported_description
from compatkit.data.tables import read_table
from compatkit.errors import CompatkitError, SignatureError
from compatkit.experiments.recipes.files import parse
from compatkit.foundation.codec import digest
from compatkit.registry.maintenance.check import examine, open_damaged
from compatkit.registry.policies import Images, Policy
from compatkit.registry.remotes.pushpull import pull
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.store import Store
from compatkit.registry.weights.header import read_header

SECONDS, MEGABYTES = 4.0, 300
Read = Callable[[Path], Any]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a reader is measured in a fork")


@attrs.frozen
class Door:
    """A file, how it is read, and what a valid one holds.

    Attributes:
        ending: Of the file's name.
        read: Reads it; what it says is an error of ours, or nothing.
        valid: Makes a valid one in a folder, which may hold other files too.
    """

    ending: str
    read: Read
    valid: Callable[[Path], None]


def opened(place: Path) -> None:
    """Open the registry that the file belongs to as its users do, and verify it."""
    root = place.parent / "parts"
    errors = read_everything(root)
    report = examine(
        open_damaged(root), deep=False
    )  # else every byte is read, which takes as long as there are many
    if errors:
        raise errors[0]
    if not report.sound:
        raise CompatkitError(str(report))


def registry(kind: str) -> Callable[[Path], None]:
    """Return what makes a registry and leaves its file of a kind at the place of the door."""

    def make(place: Path) -> None:
        store = build(place.parent / "parts")
        if kind == "policy":
            store.set_policy(
                NAME, Policy(scope=NAME, mode="backward", data=Images("a/test", f"data:{digest(b'')}"))
            )
            result = next((store.root / "policies").iterdir())
        elif kind == "withdrawal":
            result = next((store.root / "withdrawals").iterdir())
        else:
            result = kinds(store)[kind]
        place.symlink_to(result)

    return make


def pack(place: Path) -> None:
    images, labels = np.zeros((4, 8, 8, 1), np.uint8), np.arange(4) % 2
    np.savez(
        place, x_train=images, y_train=labels, x_test=images, y_test=labels, classes=np.array(["a", "b"])
    )


def picture(place: Path) -> None:
    from PIL import Image

    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(place)


def table(place: Path) -> None:
    picture(place.with_name("one.png"))
    place.write_text("path,label\none.png,a\n")


def shard(place: Path) -> None:
    picture(place.with_name("one.png"))
    with tarfile.open(place, "w") as archive:
        for name, data in (("one.png", place.with_name("one.png").read_bytes()), ("one.cls", b"0")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def layout(place: Path) -> None:
    export(build(place.parent / "source"), place.parent / "layout").check()
    place.symlink_to(place.parent / "layout" / "index.json")


def key(place: Path) -> None:
    SigningKey.new("bob").save(place.with_suffix(".pem"))


def from_layout(place: Path) -> None:
    moved = import_layout(Store.init(place.parent / "target", exist_ok=True), place.parent / "layout")
    if moved.refused:
        raise CompatkitError(str(moved.refused[0]))


def pulled(place: Path) -> None:
    moved = pull(str(place.parent / "parts"), Store.init(place.parent / "target", exist_ok=True))
    if moved.refused:
        raise CompatkitError(str(moved.refused[0]))


def written(data: bytes) -> Callable[[Path], None]:
    return lambda place: place.write_bytes(data) and None


def described(place: Path) -> None:
    folder = place.parent / "folder"
    folder.mkdir(exist_ok=True)
    if not (folder / DESCRIPTION).exists():
        (folder / DESCRIPTION).symlink_to(place)
    exported_description(folder / "model.pt2", folder)


STORED = (
    *("compatkit.json", "manifest", "weights", "version", "tombstone", "withdrawal", "alias", "move"),
    *("evidence", "result", "signature", "policy"),
)
DOORS: Mapping[str, Door] = {
    **{kind: Door("", opened, registry(kind)) for kind in STORED},
    "a registry to pull": Door("", pulled, registry("manifest")),
    "an image layout": Door("", from_layout, layout),
    "tensor file": Door(".safetensors", read_header, written(weights(1))),
    "exported component": Door(".safetensors", ck.load_exported, written(weights(1))),
    "description of an export": Door(".json", described, written(b"{}")),
    "recipe": Door(".toml", parse, written(b'prefix = "a"\n[trainer]\nsteps = 1\n')),
    "pack": Door(".npz", ck.data.load, pack),
    "table": Door(".csv", read_table, table),
    "shards": Door(".tar", ck.data.load, shard),
    "image": Door(".png", lambda place: list(arrays(place)), picture),
    "private key": Door(".pem", SigningKey.load, key),
    "public key": Door(".pub", Trusted.of, key),
}


def arrays(place: Path) -> Any:
    from compatkit.evaluation.inputs import arrays_of

    return arrays_of(place)


def sparse(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(10**10)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def large_picture(place: Path) -> None:
    """A PNG that claims 60,000 x 60,000 pixels in some kilobytes."""
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10**7), 9)
    place.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def bomb(place: Path) -> None:
    """A pack whose images unpack to a thousand times their bytes."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        head = io.BytesIO()
        shape = {"descr": "|u1", "fortran_order": False, "shape": (400_000, 32, 32, 1)}
        np.lib.format.write_array_header_1_0(head, shape)
        with archive.open("x_train.npy", "w") as file:
            file.write(head.getvalue())
            for _ in range(400):
                file.write(bytes(2**20))


def header(place: Path) -> None:
    """A tensor file whose header lists as many tensors as it may."""
    entry = b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    raw = b"{" + b",".join(entry % index for index in range(50_000)) + b"}"
    place.write_bytes(len(raw).to_bytes(8, "little") + raw)


CONTENTS: Mapping[str, Callable[[Path], None]] = {
    "ten gigabytes of nothing": sparse,
    "empty lists": written(b"[" + b"[]," * (2**24) + b"[]]"),
    "brackets": written(b"[" * 10**6),
    "one long text": written(b'{"x":"' + "\U0001f600".encode() * 10**7 + b'"}'),
    "many numbers": written(b'{"x":[' + b"1e5," * 990_000 + b"1]}"),
    "a long number": written(b"9" * 10**6),
    "noise": written(random.Random(0).randbytes(2**20)),
    "lines": written(b"a,b\n" * 2**22),
    "nothing": written(b""),
    "a large picture": large_picture,
    "a bomb": bomb,
    "many tensors": header,
}
"""Each is tried at every door, whatever it is made for."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the file of a hostile content, written once."""
    folder = tmp_path_factory.mktemp("hostile")

    def file(what: str) -> Path:
        place = folder / what.replace(" ", "-")
        if not place.exists():
            CONTENTS[what](place)
        return place

    return file


def put(place: Path, file: Path) -> None:
    """Put a hostile file at a door, or where the link that stands there leads."""
    target = place.resolve() if place.is_symlink() else place
    target.unlink(missing_ok=True)
    os.link(file, target)


def spent(read: Read, place: Path) -> tuple[str, float, float]:
    """Read in a fork; return the error's code, seconds of processor time, and megabytes by which memory grew."""
    listen, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(listen)
        signal.alarm(120)
        with open("/proc/self/statm") as state:
            content = int(state.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        begun, result = time.process_time(), "accepted"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(place)
        except (CompatkitError, SignatureError) as error:
            result = error.code if len(str(error)) < 4000 else f"a message of {len(str(error))} characters"
        except BaseException as error:
            result = f"not ours: {type(error).__name__}: {error}"[:500]
        taken = time.process_time() - begun
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - content
        os.write(tell, json.dumps([result, taken, grown / 2**20]).encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(listen) as file:
        text = file.read()
    os.waitpid(child, 0)
    assert text, "it never ended, or was killed"
    return tuple(json.loads(text))


SAMPLE = {
    ("manifest", "empty lists"),
    ("policy", "ten gigabytes of nothing"),
    ("pack", "a bomb"),
    ("table", "ten gigabytes of nothing"),
    ("recipe", "brackets"),
    ("tensor file", "many tensors"),
    ("image", "a large picture"),
}


@pytest.mark.parametrize(
    ("door", "what"),
    [
        pytest.param(door, what, marks=() if (door, what) in SAMPLE else pytest.mark.slow)
        for door in DOORS
        for what in CONTENTS
    ],
)
def test_a_hostile_file_costs_little_at_every_door(
    tmp_path: Path, hostile: Callable[[str], Path], door: str, what: str
) -> None:
    first = DOORS[door]
    place = tmp_path / f"file{first.ending}"
    first.valid(place)
    put(place, hostile(what))
    result, seconds, megabytes = spent(first.read, place)
    if seconds >= SECONDS:  # processor time also grows while another process holds the other half of a core
        seconds = spent(first.read, place)[1]
    assert not result.startswith(("not ours", "a message")), result
    assert result != "accepted" or what in ("many tensors", "lines", "nothing"), result
    assert seconds < SECONDS and megabytes < MEGABYTES, (result, seconds, megabytes)


FILES = [name for name, door in DOORS.items() if door.ending and door.valid.__name__ != "<lambda>"]


@pytest.mark.parametrize("door", FILES)
@pytest.mark.parametrize("count", [8, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(0)])])
def test_a_damaged_file_is_an_error_of_ours(tmp_path: Path, door: str, count: int) -> None:
    """What test_fuzz does for the files of a registry."""
    first = DOORS[door]
    place = tmp_path / f"file{first.ending}"
    first.valid(place)
    valid = place.read_bytes()
    for number in range(count if count < 100 else cases(count)):
        data = edited(valid, random.Random(f"{door} {number}"), [valid])
        put_in_place(place, data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                first.read(place)
        except CompatkitError as error:
            assert 20 < len(str(error)) < 4000, error
        except BaseException as error:
            raise AssertionError(
                f"case {number}: {type(error).__name__}: {error}; {data[:2000]!r}"
            ) from error
