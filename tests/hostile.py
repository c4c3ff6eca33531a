"""A registry with one of everything, and files in it that were changed by a stranger."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from measured import settings
from pointed import pointers
from torch.utils.data import Dataset  # here, so that torch is not imported while reading is watched

from compatkit.contracts.contract import (
    Blueprint,
    Contract,
    Data,
    Label,
    Port,
    Probe,
    Protocol,
    Statistical,
    Structural,
)
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.manifest import About, Edge, Manifest, Payload, edges, function_digest
from compatkit.errors import CompatkitError
from compatkit.evaluation.records import Cells, record
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry.layout_scan import scan
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.signing.verify import verify as verify_signatures
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest

NAME = "team/one"
HEAD = "value:sha256:" + "1" * 64
ALICE = SigningKey.new("alice")
SHARES = 0.9, 9, 10, 0.6, 0.98
CONTRACT = Contract(
    Structural(
        (Port("image", ("N", 1, "H", "W")),),
        (Port("features", ("N", 8, "H", "W"), measured={"8x8": (8, 8)}),),
    ),
    Data((8, 8), "L", (0.5,), (0.25,), labels=(Label("cat"), Label("dog", ("hound",)))),
    Protocol("none"),
    Statistical(None, Probe("hash-1", ((2, 1, 8, 8),), (0.5,), 1e-3, "value:sha256:" + "0" * 64)),
)
BLUEPRINT = Blueprint("timm", "timm 1.0", "small", {"in_chans": 1}, "layer1", "extractor", "fx", (8, 8))
CELL = Cell(
    f"{NAME}@2.0.0",
    "team/two@1.0.0",
    "direct",
    "none",
    "perfect",
    Figure(*SHARES),
    Figure(*SHARES),
    0.5,
    Figure(*SHARES),
    settings=settings(),
)


def weights(value: int, size: int = 16) -> bytes:
    """Return a small tensor file with metadata and three tensors."""
    ends = 0, size, size + 8, size + 10
    kinds = ("U8", [size]), ("F32", [2, 1]), ("BF16", [])
    header: dict[str, Any] = {"__metadata__": {"compatkit": "note"}}
    for at, (dtype, shape) in enumerate(kinds):
        header[f"layer{at}.weight"] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [ends[at], ends[at + 1]],
        }
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes([value % 63]) * ends[-1]


def manifest_of(file: Edge, data: bytes, **changes: Any) -> Manifest:
    """Return a manifest of a tensor file with three tensors."""
    payload = Payload(file, tensor_digest(data), 3, 18)
    return Manifest(kind="extractor", blueprint=BLUEPRINT, payload=payload, contract=CONTRACT, **changes)


def build(root: Path) -> Store:
    """Make a registry with two versions, one withdrawn, an alias that moved, a measured result, and a signature."""
    store = Store.init(root)
    for value, about in ((0, ""), (1, "better")):
        data = weights(value)
        run = store.put_blob(b'{"loss": [1.5, 0.5]}')
        training = {"run": attrs.asdict(run), "seed": value}
        store.publish(
            NAME, manifest_of(store.put_blob(data), data, about=About(title=about), training=training)
        )
    store.set_alias(NAME, "prod", "1.0.0")
    store.set_alias(NAME, "prod", "2.0.0")
    store.withdraw(NAME, "1.0.0", "trained on the test images")
    function = function_digest(store.manifest(NAME))
    store.evidence.add(function, HEAD, **record(CELL))
    sign(store, NAME, ALICE)
    return store


def kinds(store: Store) -> dict[str, Path]:
    """Return one file of each kind."""
    refs, newest = store.root / "refs" / NAME, store.resolve(NAME)
    manifest = store.manifest(newest)
    pointer = pointers(store, function_digest(manifest), HEAD)[0]
    return {
        "compatkit.json": store.root / "compatkit.json",
        "manifest": store.objects.path(str(newest.digest)),
        "weights": store.objects.path(manifest.payload.file.blob),
        "version": refs / "@versions" / "2.0.0",
        "tombstone": refs / "@tombstones" / "1.0.0",
        "alias": refs / "@aliases" / "prod",
        "move": refs / "@log" / "prod" / "2",
        "evidence": pointer,
        "result": store.objects.path(f"sha256:{pointer.name}"),
        "signature": store.signatures.files(str(newest.digest))[0],
    }


class States(Dataset[tuple[int, Any]]):
    """The weights of one component again and again, as processes of a data loader read them."""

    def __init__(self, store: Store, length: int) -> None:
        self.store, self.length = store, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[int, Any]:
        if number >= self.length:
            raise IndexError(number)
        return number, self.store.load_state(self.store.manifest(NAME))


def read_everything(root: Path) -> list[CompatkitError]:
    """Read all that a registry holds as its users do; return the errors, of which only ours are let through."""
    errors: list[CompatkitError] = []

    def attempt(action: Callable[..., Any], *args: Any) -> Any:
        try:
            return action(*args)
        except CompatkitError as error:
            errors.append(error)
            return None

    store: Store | None = attempt(Store.open, root)
    if store is None:
        return errors
    attempt(list, scan(store.root, "blobs"))
    for name in attempt(store.names) or ():
        for alias in attempt(store.aliases, name) or ():
            attempt(store.resolve, f"{name}:{alias}")
            attempt(store.alias_log, name, alias)
        for version in attempt(store.references.versions, name) or ():
            attempt(store.tombstone, name, version)
            attempt(store.references.digest, name, version)
        manifest = attempt(store.manifest, name)
        if manifest is not None:
            _read(store, manifest, attempt)
            if name == NAME:
                attempt(verify_signatures, store, name, Trusted({ALICE.public.id: ALICE.public}))
    return errors


def _read(store: Store, manifest: Manifest, attempt: Callable[..., Any]) -> None:
    attempt(list, edges(manifest))
    attempt(lambda: store.load_state(manifest, verify="always"))
    function = attempt(function_digest, manifest)
    for head in (attempt(store.evidence.partners, function) or ()) if function else ():
        for pointer in attempt(pointers, store, function, head) or ():
            attempt(lambda name=pointer.name: store.objects.read(f"sha256:{name}", max_bytes=MAX_BYTES))
        for result in attempt(store.evidence.results, [function], [head]) or ():
            attempt(Cells().of, result, NAME, head)


def edited(data: bytes, numbers: random.Random, others: Sequence[bytes]) -> bytes:
    """Return bytes with one to four random edits: flip, set, insert, delete, double, cut, or splice with another."""
    made = bytearray(data)
    for _ in range(numbers.randint(1, 4)):
        at = numbers.randrange(len(made) + 1)
        end = min(len(made), at + numbers.choice((1, 1, 2, 8, 64)))
        edit = numbers.randrange(8)
        if edit == 0 and at < len(made):
            made[at] ^= 1 << numbers.randrange(8)
        elif edit == 1 and at < len(made):
            made[at] = numbers.choice(b'\x00\xff09-+.eE"\\[]{},: \n/utA')
        elif edit == 2:
            made[at:at] = numbers.randbytes(numbers.choice((1, 2, 9)))
        elif edit == 3:
            del made[at:end]
        elif edit == 4:
            made[at:at] = made[at:end]
        elif edit == 5:
            del made[at:]
        elif edit == 6:
            other = numbers.choice(others)
            made[at:] = other[numbers.randrange(len(other) + 1) :]
        else:
            made[at:end] = numbers.choice(
                (b"9" * 30, b"-1", b"1e999", b"null", b"[[", b'"../../x"', b"\xed\xa0\x80")
            )
    return bytes(made)


def put_in_place(path: Path, data: bytes) -> None:
    """Write a file whatever stands in its place, ten seconds ago."""
    clear(path)
    path.write_bytes(data)
    then = time.time() - 10
    os.utime(path, (then, then))


def clear(path: Path) -> None:
    """Remove whatever stands at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def stand_in(path: Path, kind: str, outside: Path) -> None:
    """Put something else in place of a file: a link out of the registry, a folder, a pipe, a socket, a device."""
    data = path.read_bytes()
    clear(path)
    if kind == "link":
        (outside / "twin").write_bytes(data)
        path.symlink_to(outside / "twin")
    elif kind == "dangling link":
        path.symlink_to(outside / "nowhere")
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, _inside(path.parent):
            made.bind(path.name)
    elif kind == "device":
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # zeros without end
    else:
        raise ValueError(kind)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder: the path of a socket is at most 108 bytes."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
