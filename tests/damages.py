"""A small registry with one of everything, and a table of what can happen to its files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compatkit.contracts.contract import Blueprint, Contract, Data, Port, Protocol, Structural
from compatkit.contracts.manifest import Manifest, Parent, Payload, function_digest
from compatkit.foundation.codec import dumps
from compatkit.registry.policies import Images, Policy
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest

EXTRACTOR, HEAD = "parts/one.extractor", "parts/one.head"
REASON = "wrong data"
ALIAS = f"{HEAD}:prod"
OLD, NEW, TOP = f"{EXTRACTOR}@1.0.0", f"{EXTRACTOR}@2.0.0", f"{HEAD}@1.0.0"
SCOPE = "parts/*"
RESULTS = f"results of {NEW} with {TOP}"


def tensor_file(numbers: bytes, dtype: str = "F32", size: int = 4) -> bytes:
    """Return a file with the one tensor ``weight``, large enough to have a page in the middle."""
    entry = {"dtype": dtype, "shape": [len(numbers) // size], "data_offsets": [0, len(numbers)]}
    raw = json.dumps({"weight": entry}).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + numbers


def weights(value: int) -> bytes:
    """Return 16 KiB of small, finite, 32-bit numbers."""
    return tensor_file(bytes([value, 0, 0, 0x3F]) * 4096)


def put(store: Store, data: bytes, count: int = 1) -> Payload:
    """Keep weights as they are."""
    return Payload(store.put_blob(data), tensor_digest(data), count, 4096)


@attrs.frozen
class Parts:
    """A registry and where its files are, relative to its root."""

    root: Path
    blobs: dict[str, str]
    kept: list[tuple[Path, os.stat_result, bytes | None]] = attrs.field(factory=list, init=False, repr=False)

    @property
    def store(self) -> Store:
        return Store.open(self.root)

    def path(self, what: str) -> str:
        """Return the path of a file by a word for it."""
        if what in self.blobs:
            hexadecimal = self.blobs[what].removeprefix("sha256:")
            return f"blobs/sha256/{hexadecimal[:2]}/{hexadecimal}"
        if what.startswith("log/"):
            return f"refs/{HEAD}/@log/prod/{what.removeprefix('log/')}"
        if what.startswith("policy/"):
            return f"policies/parts%2f%2a@{what.removeprefix('policy/')}"
        if what == "pointer":
            folder = self.root / "evidence"
            (pointer,) = (
                entry for entry in folder.rglob("*") if len(entry.name) == 64 and not entry.is_dir()
            )
            return pointer.relative_to(self.root).as_posix()
        if what == "signature":
            (result,) = (entry for entry in (self.root / "signatures").glob("*/*"))
            return result.relative_to(self.root).as_posix()
        return {
            "marker": "compatkit.json",
            "new": f"refs/{EXTRACTOR}/@versions/2.0.0",
            "old": f"refs/{EXTRACTOR}/@versions/1.0.0",
            "top": f"refs/{HEAD}/@versions/1.0.0",
            "next": f"refs/{HEAD}/@versions/2.0.0",
            "tombstone": f"refs/{EXTRACTOR}/@tombstones/1.0.0",
            "withdrawal": f"withdrawals/{EXTRACTOR.replace('/', '%2f')}@1.0.0",
            "alias": f"refs/{HEAD}/@aliases/prod",
            "log": f"refs/{HEAD}/@log/prod",
        }.get(what, what)

    def copy(self, root: Path) -> Parts:
        """Return a copy of the registry in another folder; a tree that was copied before is not read again."""
        if not self.kept:
            for path in (self.root, *sorted(self.root.rglob("*"))):
                content = path.read_bytes() if path.is_file() else None
                self.kept.append((path.relative_to(self.root), path.stat(), content))
        for path, state, content in self.kept:
            target = root / path
            if content is None:
                os.mkdir(target)
            else:
                target.write_bytes(content)
                os.chmod(target, stat.S_IMODE(state.st_mode))
            os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
        return Parts(root, self.blobs)


def manifest_of(payload: Payload, **changes: Any) -> Manifest:
    """Return a small manifest."""
    ports = Structural((Port("image", ("N", 1, "H", "W")),), (Port("features", ("N", 8), layout="NC"),))
    return Manifest(
        kind="extractor",
        blueprint=Blueprint("timm", "timm 1", "net", {}, "layer1", "extractor", "fx", (32, 32)),
        payload=payload,
        contract=Contract(ports, Data((32, 32), "L", (0.5,), (0.5,)), Protocol("none")),
        **changes,
    )


def build(root: Path) -> Parts:
    """Make the registry: two versions of an extractor, one withdrawn; two of a head; alias, result and signature."""
    store = Store.init(root)
    old = store.publish(EXTRACTOR, manifest_of(put(store, weights(1))))
    new = store.publish(EXTRACTOR, manifest_of(put(store, weights(2))))
    run = store.put_blob(dumps({"plan": "the run", "steps": 3}))
    training = {"run": attrs.asdict(run)}
    parents = (Parent("trained_with", str(new.digest)),)
    head = manifest_of(put(store, weights(3)), training=training, parents=parents)
    top = store.publish(HEAD, head)
    other = store.publish(HEAD, manifest_of(put(store, weights(4)), parents=parents))
    for version in ("1.0.0", "2.0.0", "1.0.0"):
        store.set_alias(HEAD, "prod", version)
    store.withdraw(EXTRACTOR, "1.0.0", REASON)
    images = Images("mnist/test", f"data:sha256:{'a' * 64}")
    for mode in ("backward", "forward", "full"):
        store.set_policy(SCOPE, Policy(scope=SCOPE, mode=mode, data=images))  # type: ignore[arg-type]
    left, right = (function_digest(store.manifest(name)) for name in (NEW, TOP))
    result = store.evidence.record(left, right, {"seed": 0}, dumps({"accuracy": 0.5}))
    store.signatures.add(str(top.digest), SigningKey.new("alice").sign(str(top.digest), TOP).to_bytes())
    blobs = {
        "old manifest": str(old.digest),
        "old weights": store.manifest(f"{EXTRACTOR}@{old.digest}").payload.file.blob,
        "manifest": str(top.digest),
        "weights": head.payload.file.blob,
        "parent": str(new.digest),
        "parent weights": store.manifest(NEW).payload.file.blob,
        "other manifest": str(other.digest),
        "run": run.blob,
        "result": result.blob,
    }
    return Parts(root, blobs)


def overwrite(path: Path, data: bytes) -> None:
    """Write a file in place, whatever its rights, and keep those."""
    mode = path.stat().st_mode
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode & 0o777)
    os.utime(path, (1_700_000_000, 1_700_000_000))


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: overwrite(path, change(path.read_bytes()))


def flipped(where: float) -> Callable[[Path], None]:
    """Flip one bit: 0 in the first byte, 1 in the last."""

    def change(data: bytes) -> bytes:
        damaged = bytearray(data or b"?")
        damaged[round(where * (len(damaged) - 1))] ^= 1
        return bytes(damaged)

    return changed(change)


def linked_out(path: Path) -> None:
    """Put a symbolic link to the same bytes outside the registry in a file's place."""
    target = _outside(path)
    shutil.copy(path, target)
    path.unlink()
    path.symlink_to(target)


def folder_linked_out(path: Path) -> None:
    """Move a folder out of the registry and put a symbolic link in its place."""
    target = _outside(path)
    shutil.move(path, target)
    path.symlink_to(target)


def _outside(path: Path) -> Path:
    root = next(parent for parent in path.parents if (parent / "compatkit.json").exists())
    return root.parent / f"outside-{os.urandom(4).hex()}"


def as_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket may have no more than 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name[:64])
    finally:
        os.chdir(here)


def as_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def to_trash(path: Path) -> None:
    root = next(parent for parent in path.parents if (parent / "compatkit.json").exists())
    path.rename(root / "trash" / f"{path.name}-1-{'0' * 16}")


def to_quarantine(path: Path) -> None:
    root = next(parent for parent in path.parents if (parent / "compatkit.json").exists())
    path.rename(root / "quarantine" / f"{path.name}-1-{'0' * 16}")


@attrs.frozen
class Damage:
    """Something that happens to one file.

    Attributes:
        places: Words for the files that it may happen to.
        do: Does it to a path.
        code: Code of the one fault that is found.
        mended: Whether a repair makes it good: ``"alone"``; ``"copy"``, with another copy of the registry; ``"no"``.
        words: Part of what the plan says, or of the remedy where nothing mends it.
        elsewhere: Path that the fault names instead, relative to the root; ``{}`` stands for the path.
        whose: Who is affected, where the path alone does not say so.
    """

    places: tuple[str, ...]
    do: Callable[[Path], Any]
    code: str
    mended: str
    words: str
    elsewhere: str = "{}"
    whose: str = ""


BLOBS = ("manifest", "weights", "run", "result", "parent", "parent weights", "old weights")
NO_RESULT = BLOBS[:3] + BLOBS[4:]
VERSIONS = ("new", "old", "top", "next")
USERS = {
    "manifest": TOP,
    "weights": TOP,
    "run": TOP,
    "result": RESULTS,
    "parent": NEW,
    "parent weights": NEW,
    "old manifest": OLD,
    "old weights": OLD,
    "other manifest": f"{HEAD}@2.0.0",
    "new": NEW,
    "old": OLD,
    "top": TOP,
    "next": f"{HEAD}@2.0.0",
    "tombstone": OLD,
    "withdrawal": OLD,
    "alias": ALIAS,
    "log": ALIAS,
    "pointer": RESULTS,
    "signature": TOP,
    "policy": SCOPE,
}
"""Who is affected by a damage to a file."""


def table(*, one: str = "damage") -> list[Any]:
    """Return every damage at every place as parameters; all but one of each kind are slow.

    Args:
        one: Of which kind: ``"damage"``, or ``"code"``: of each code and way of mending.
    """
    result: list[Any] = []
    seen: set[tuple[str, str]] = set()
    for number, (name, damage) in enumerate(rows()):
        kind = (name, "") if one == "damage" else (damage.code, damage.mended)
        for at, place in enumerate(damage.places):
            quick = at == number % len(damage.places) and kind not in seen
            marks = [] if quick else [pytest.mark.slow]
            seen |= {kind} if quick else set()
            result.append(pytest.param(damage, place, id=f"{name}: {place}", marks=marks))
    return result


def rows() -> Iterator[tuple[str, Damage]]:
    """Yield every kind of damage with a name."""
    whole = {
        "first bit flipped": flipped(0),
        "last bit flipped": flipped(1),
        "a bit in the middle flipped": flipped(0.5),
        "cut off": changed(lambda data: data[:-1]),
        "longer": changed(lambda data: data + b"\0"),
        "empty": changed(lambda data: b""),
        "right size, zero bytes": changed(lambda data: bytes(len(data))),
    }
    for name, do in whole.items():
        yield f"blob: {name}", Damage(NO_RESULT, do, "blob-digest", "copy", "to quarantine/")
        yield f"result: {name}", Damage(("result",), do, "blob-digest", "alone", "measure again")
        yield (
            f"signature: {name}",
            Damage(("signature",), do, "signature-damaged", "alone", "its signer can sign again"),
        )
    page = changed(lambda data: data[:4096] + bytes(4096) + data[8192:])
    yield (
        "blob: a zeroed page",
        Damage(("weights", "parent weights"), page, "blob-digest", "copy", "to quarantine/"),
    )
    yield from _missing()
    yield from _odd()
    yield from _references()


def _missing() -> Iterator[tuple[str, Damage]]:
    gone = Path.unlink
    yield (
        "blob: removed",
        Damage(("weights", "run", "parent weights"), gone, "blob-missing", "copy", "copy blobs/"),
    )
    yield "withdrawn weights: removed", Damage(("old weights",), gone, "blob-collected", "alone", "")
    yield (
        "manifest: removed",
        Damage(("manifest", "parent", "old manifest"), gone, "manifest-missing", "copy", "copy"),
    )
    yield "result: removed", Damage(("result",), gone, "result-missing", "alone", "measure again")
    yield "blob: in trash", Damage(BLOBS, to_trash, "blob-in-trash", "alone", "from trash/")
    for places, code in ((("weights", "run"), "blob-missing"), (("manifest",), "manifest-missing")):
        yield f"{code}: in quarantine", Damage(places, to_quarantine, code, "alone", "from quarantine/")
    yield (
        "result: in quarantine",
        Damage(("result",), to_quarantine, "result-missing", "alone", "from quarantine/"),
    )
    yield (
        "blob: writable",
        Damage(BLOBS, lambda path: path.chmod(0o644), "blob-writable", "alone", "to 444"),
    )


def _odd() -> Iterator[tuple[str, Damage]]:
    kinds: dict[str, tuple[Callable[[Path], Any], str]] = {
        "a link out": (linked_out, "symlink"),
        "a folder": (as_folder, "folder-for-file"),
    }
    kinds["a dangling link"] = (lambda path: (path.unlink(), path.symlink_to("nowhere")), "symlink")
    if hasattr(os, "mkfifo"):
        kinds["a pipe"], kinds["a socket"] = (as_pipe, "special-file"), (as_socket, "special-file")
    for name, (do, code) in kinds.items():
        yield f"blob: {name}", Damage(NO_RESULT, do, code, "copy", "to quarantine/")
        yield f"result: {name}", Damage(("result",), do, code, "alone", "measure again")
        yield f"version: {name}", Damage(("new", "next"), do, code, "copy", "as in /")
        yield f"alias: {name}", Damage(("alias",), do, code, "alone", "its log is used instead")
        yield f"log: {name}", Damage(("log/1", "log/2", "log/3"), do, code, "copy", "as in /")
        yield f"pointer: {name}", Damage(("pointer",), do, code, "alone", "as in its name")
        yield f"policy: {name}", Damage(("policy/1", "policy/3"), do, code, "copy", "as in /")
        if do is not as_socket:  # whose name may not be so long
            yield f"signature: {name}", Damage(("signature",), do, code, "alone", "its signer can sign again")
        mended = "no" if code == "folder-for-file" else "alone"
        words = "remove it" if code == "folder-for-file" else "stays withdrawn"
        yield f"tombstone: {name}", Damage(("tombstone",), do, code, mended, words)
    for place in ("refs", "refs/parts", f"refs/{HEAD}/@versions", "blobs", "blobs/sha256", "tmp", "evidence"):
        do = folder_linked_out
        yield (
            f"{place}: a link out",
            Damage((place,), do, "symlink", "no", "replace it by its target"),
        )
    remove = shutil.rmtree
    for place in ("tmp", "trash", "quarantine", "locks", "keys", "signatures", "policies"):
        yield (
            f"{place}: removed",
            Damage((place,), remove, "folder-missing", "alone", f"create the folder {place}/"),
        )


def _references() -> Iterator[tuple[str, Damage]]:
    for name, size in {"empty": 0, "torn": 10, "without its name": 71, "without its end": 90}.items():
        do = changed(lambda data, size=size: data[:size])
        yield f"version: {name}", Damage(VERSIONS, do, "version-torn", "copy", "as in /")
    for name, content in {
        "zero bytes": bytes(72),
        "text": b"../../x\n",
        "upper": b"sha256:" + b"A" * 64 + b"\n",
    }.items():
        do = lambda path, content=content: overwrite(path, content)  # noqa: E731
        yield f"version: {name}", Damage(VERSIONS, do, "version-content", "copy", "as in /")
        yield (
            f"tombstone: {name}",
            Damage(("tombstone", "withdrawal"), do, "tombstone-damaged", "alone", "stays withdrawn"),
        )
        yield f"alias: {name}", Damage(("alias",), do, "alias-damaged", "alone", "its log is used instead")
        yield (
            f"log: {name}",
            Damage(("log/1", "log/2", "log/3"), do, "alias-log-damaged", "copy", "as in /"),
        )
        yield f"pointer: {name}", Damage(("pointer",), do, "evidence-damaged", "alone", "as in its name")
    for name, do in {
        "empty": changed(lambda data: b""),
        "cut off": changed(lambda data: data[:-9]),
        "of another scope": changed(lambda data: data.replace(b"parts", b"party")),
        "another mode": changed(lambda data: data.replace(b'ard"', b'ish"').replace(b'"full"', b'"wish"')),
    }.items():
        yield (
            f"policy: {name}",
            Damage(("policy/1", "policy/2", "policy/3"), do, "policy-damaged", "copy", "as in /"),
        )
    yield (
        "policy: removed",
        Damage(("policy/1", "policy/2"), Path.unlink, "policy-gap", "copy", "as in /"),
    )
    unknown = lambda path: path.with_name("Parts@1").write_bytes(b"{}")  # noqa: E731
    yield (
        "policy: a bad name",
        Damage(("policy/1",), unknown, "misnamed", "no", "rename", "policies/Parts@1", "-"),
    )
    other = lambda path: overwrite(path, b"2.0.0 3\n")  # noqa: E731
    yield (
        "alias: other than its log",
        Damage(("alias",), other, "alias-damaged", "alone", "its log is used instead"),
    )
    yield (
        "log: a move removed",
        Damage(("log/1", "log/2"), Path.unlink, "alias-log-gap", "copy", "as in /"),
    )
    yield (
        "log: the last move removed",
        Damage(("log/3",), Path.unlink, "alias-damaged", "copy", "as in /", "alias"),
    )
    yield (
        "version: removed",
        Damage(("old",), Path.unlink, "tombstone-orphan", "copy", "as in /", "tombstone"),
    )
    yield (
        "version: removed, an alias left",
        Damage(("top",), Path.unlink, "alias-dangling", "copy", "as in /", "alias", ALIAS),
    )
    yield (
        "tombstone: removed",
        Damage(("tombstone",), Path.unlink, "tombstone-missing", "alone", "stays withdrawn"),
    )
    other = lambda path: overwrite(path, path.with_name("1.0.0").read_bytes())  # noqa: E731
    yield (
        "version: a copy of another",
        Damage(("new", "next"), other, "version-exchanged", "copy", "as in /"),
    )
    renamed = lambda path: path.with_name("1.0").write_bytes(b"x")  # noqa: E731
    yield (
        "version: a bad name",
        Damage(("top",), renamed, "misnamed", "no", "rename", f"refs/{HEAD}/@versions/1.0", "-"),
    )
    twin = lambda path: path.with_name("One.Head").mkdir()  # noqa: E731
    yield (
        "name: a twin",
        Damage((f"refs/{HEAD}",), twin, "misnamed", "no", "rename", "refs/parts/One.Head", "-"),
    )
