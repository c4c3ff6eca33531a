"""Files as strangers write them: valid ones changed in their structure; and what must hold when they are read."""

from __future__ import annotations

import copy
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import safetensors.torch
import torch
from attack import cases
from hostile import build, clear, kinds, put_in_place, read_everything
from hypothesis import strategies as st
from watching import listing, watched

from compatkit.errors import FormatError, SignatureError
from compatkit.foundation.codec import digest, loads
from compatkit.registry.store import Store
from compatkit.registry.weights.header import DTYPES, check_header
from compatkit.registry.weights.tensorfile import deserialize

SECONDS = 2
"""That one case may take; most take some milliseconds."""
TRAPS = (
    "../../outside/secret",
    "/etc/passwd",
    "C:\\x",
    "sha256:../../x",
    "sha256:" + "0" * 64,
    "team/../one",
    "\x1b[2J",
)
RAW = (
    "NaN",
    "-Infinity",
    "1e999",
    "-0",
    "9" * 5000,
    "1" + "0" * 400,
    "[" * 200 + "]" * 200,
    '"\\ud800"',
    "01",
    "",
)
FRAGMENTS = (
    "sha256:",
    "0" * 64,
    "a" * 63,
    "\n",
    " ",
    "1.0.0",
    "2.0.0",
    "7",
    "-1",
    "9" * 30,
    "../../x",
    "\0",
    "\u0663",
)


@attrs.frozen
class Raw:
    """Text that stands in a document as it is."""

    text: str


@attrs.frozen
class Twice:
    """A value whose key stands in the document a second time, with another value."""

    first: Any
    second: Any


def written(value: Any) -> str:
    """Return a changed document as text, valid JSON or not."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Twice):
        return written(value.first)
    if isinstance(value, dict):
        pairs: list[str] = []
        for key, entry in value.items():
            for each in (entry.first, entry.second) if isinstance(entry, Twice) else (entry,):
                pairs.append(f"{json.dumps(key)}:{written(each)}")
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


odd = st.one_of(
    st.none() | st.booleans() | st.floats() | st.text(max_size=6),
    st.integers() | st.sampled_from([2**31, 2**53, 2**63, 2**64, -1, 10**400]),
    st.sampled_from(TRAPS),
    st.sampled_from(RAW).map(Raw),
    st.lists(st.integers(-1, 9) | st.text(max_size=3), max_size=4),
    st.dictionaries(
        st.sampled_from(["blob", "component", "bytes", "of", "name", "x"]), st.sampled_from(TRAPS), max_size=3
    ),
)
lines = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=5).map(
    lambda parts: "".join(parts).encode("utf-8", "surrogatepass")
)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> str:
    """Draw a document with one to three changes of its structure."""
    value = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            break
        inside, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(("replace", "replace", "remove", "add", "double", "swap", "wrap")))
        if how == "replace":
            inside[key] = draw(odd)
        elif how == "remove":
            del inside[key]
        elif how == "add" and isinstance(inside, dict):
            inside[draw(st.text(max_size=4) | st.sampled_from(TRAPS))] = draw(odd)
        elif how == "add":
            inside.insert(key, draw(odd))
        elif how == "double" and isinstance(inside, dict):
            inside[key] = Twice(inside[key], inside[key] if draw(st.booleans()) else draw(odd))
        elif how == "swap":
            other, place = places[draw(st.integers(0, len(places) - 1))]
            inside[key] = copy.deepcopy(other[place])
        else:
            inside[key] = [inside[key]]
    return written(value)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    steps = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield value, step
        yield from _places(value[step])


class TooSlow(Exception):
    """One case computes for too long; no TimeoutError, which is an error of the system and told as such."""


@contextmanager
def limited() -> Iterator[None]:
    """Stop what computes for too long; waiting too long is seen afterwards."""

    def stop(number: int, frame: object) -> None:
        raise TooSlow(f"more than {SECONDS} s of computing")

    start = time.monotonic()
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert time.monotonic() - start < 10 * SECONDS, "it waited for something"


class Bench:
    """A registry beside a folder that is nobody's business, both put back after each case.

    Attributes:
        whole: False after a case that failed.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.outside = folder / "parts", folder / "outside"
        self.outside.mkdir(parents=True)
        (self.outside / "secret").write_bytes(b"sha256:" + b"0" * 64 + b"\n")
        store = build(self.root)
        self.files = kinds(store)
        self.valid = {kind: path.read_bytes() for kind, path in self.files.items()}
        self.originals = {self.files[kind]: data for kind, data in self.valid.items()}
        for path, data in self.originals.items():
            put_in_place(path, data)
        self.size = store.manifest("team/one").payload.file.bytes
        self.whole = read_everything(self.root) == []

    def document(self, kind: str) -> Any:
        """Return a valid document of a kind; of a tensor file its header."""
        data = self.valid[kind]
        return loads(
            data[8 : 8 + int.from_bytes(data[:8], "little")] if kind == "weights" else data, what=kind
        )

    def consistent(self, kind: str, data: bytes) -> dict[Path, bytes]:
        """Return the files of a registry in which ``data`` has its right digest and is referred to."""
        blobs = Store.open(self.root).objects
        if kind == "weights":
            old = digest(self.valid["weights"]).encode()
            stated = self.valid["manifest"].replace(b'"bytes":%d' % self.size, b'"bytes":%d' % len(data))
            rest = self.consistent("manifest", stated.replace(old, digest(data).encode()))
            return {blobs.path(digest(data)): data, **rest}
        if kind == "manifest":
            return {blobs.path(digest(data)): data, self.files["version"]: digest(data).encode() + b"\n"}
        if kind == "result":
            place = self.files["evidence"].with_name(digest(data).removeprefix("sha256:"))
            return {blobs.path(digest(data)): data, place: digest(data).encode() + b"\n"}
        return {self.files[kind]: data}

    def case(self, files: dict[Path, bytes]) -> None:
        """Write files, read everything, and check that nothing happened but errors of ours and quarantine."""
        self.whole = False
        made = {path.parent for path in files if not path.parent.exists()}
        for path, data in files.items():
            path.parent.mkdir(exist_ok=True)
            put_in_place(path, data)
        before, around = listing(self.root), listing(self.outside)
        with limited(), watched(self.root) as outside:
            errors = read_everything(self.root)
        self._compare(before, listing(self.root))
        assert outside == [], outside
        assert listing(self.outside) == around, "a file beside the registry was touched"
        for error in errors:
            known = error.exit_code in (2, 3, 4) or isinstance(error, SignatureError)
            assert 20 < len(str(error)) < 4000 and known, error
        for path in files:
            put_in_place(path, self.originals[path]) if path in self.originals else clear(path)
        for folder in made:
            folder.rmdir()
        for entry in (self.root / "quarantine").iterdir():
            entry.unlink()
        self.whole = True

    def _compare(self, before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]) -> None:
        gone = {path: before[path] for path in before.keys() - after.keys()}
        new = {path: after[path] for path in after.keys() - before.keys()}
        assert all(path.startswith("blobs/") for path in gone), gone
        assert all(path.startswith("quarantine/") for path in new), new
        assert sorted(gone.values()) == sorted(new.values()), (gone, new)
        other = [path for path in before.keys() & after.keys() if before[path] != after[path]]
        assert other == [], other


def agree(data: bytes) -> bool:
    """Return whether ``data`` is accepted here; what is must mean the same to the safetensors library."""
    try:
        header = check_header(data)
    except FormatError:
        return False
    theirs, ours = safetensors.torch.load(data), deserialize(data)
    assert theirs.keys() == ours.keys() == {tensor.name for tensor in header.tensors}
    for entry in header.tensors:
        for item in (theirs[entry.name], ours[entry.name]):
            assert str(item.dtype) == f"torch.{DTYPES[entry.dtype][0]}" and tuple(item.shape) == entry.shape
            assert bytes(item.reshape(-1).view(torch.uint8).numpy()) == data[entry.start : entry.stop]
    return True


def count_of(ordinary: int, total: int = 1465) -> int:
    """Return how many cases a long run tries where an ordinary one tries ``ordinary`` of ``total``."""
    return cases(round(100_000 * ordinary / total))
