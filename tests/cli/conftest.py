"""The command line in this process, a small trained registry, recipes and packs, and folders compared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import fsspec
import pytest
from documented import check_document
from small import quick, write_packs

import compatkit as ck
from compatkit.cli import main

RECIPE = """
prefix = "digits"
regularizers = ["identical_init", "dcc"]

[trainer]
steps = 2
batch_size = 8
precision = "float32"

[[tasks]]
name = "left"
data = "left.npz"
model = "resnet8_cifar"
cut = "layer2"
size = [16, 16]

[[tasks]]
name = "right"
data = "right.npz"
model = "resnet8_cifar"
cut = "layer2"
size = [16, 16]
"""


@attrs.frozen
class Result:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON value and nothing else."""
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test in its own folder: runs and sweeps are written to the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process, 100 columns wide."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        if "--json" in words:
            check_document([str(word) for word in words], out)
        return Result(int(end.value.code or 0), out, err)

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with two tasks trained together, and a folder of their data sets beside it; only to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    write_packs(folder)
    tasks = [
        ck.Task(name, ck.data.load(folder / f"{name}.npz"), "resnet8_cifar", "layer2", size=(16, 16))
        for name in ("left", "right")
    ]
    fit = quick(steps=2).fit(tasks, ["identical_init", "dcc"])
    ck.Registry.init(folder / "parts").publish(fit, prefix="digits")
    return folder


@pytest.fixture
def parts(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of this test's own, which is the current folder's; ``left`` and ``right`` are found by name."""
    shutil.copytree(trained, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COMPATKIT_REGISTRY", "parts")
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "work"))
    return tmp_path / "work" / "parts"


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Write the recipe with pieces of it replaced, its packs beside it, and return its path."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    write_packs(folder)

    def write(*changes: tuple[str, str]) -> Path:
        text = RECIPE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / "recipe.toml").write_text(text)
        return folder / "recipe.toml"

    return write


def tree(folder: Path) -> dict[str, str]:
    """Return every path below a folder but those of the user's cache, with a digest of each file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] != "cache"
    }


@pytest.fixture
def untouched() -> Callable[[Path], AbstractContextManager[None]]:
    """Compare a folder before and after: every file, every folder, every byte."""

    @contextmanager
    def compare(folder: Path) -> Iterator[None]:
        before = tree(folder)
        yield
        assert tree(folder) == before

    return compare


def blob(parts: Path, digest: str) -> Path:
    """Return where a registry keeps a blob."""
    hexadecimal = digest.removeprefix("sha256:")
    return parts / "blobs" / "sha256" / hexadecimal[:2] / hexadecimal


@pytest.fixture
def damage(parts: Path) -> Callable[[str], Path]:
    """Flip one bit in the middle of a blob and return its path."""

    def flip(digest: str) -> Path:
        path = blob(parts, digest)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        return path

    return flip


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[str]:
    """An address in this process's memory, like an object store."""
    system = fsspec.filesystem("memory")
    yield f"memory://commands/{tmp_path.name}"
    if system.exists("/commands"):
        system.rm("/commands", recursive=True)


@pytest.fixture(params=["memory", "folder"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address in memory, and a folder."""
    return request.getfixturevalue("memory") if request.param == "memory" else str(tmp_path / "far")
