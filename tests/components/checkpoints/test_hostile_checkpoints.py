"""Nothing that a checkpoint holds is run: other formats are named, bombs do not go off, the reader stays alive."""

from __future__ import annotations

import builtins
import importlib
import io
import os
import resource
import tarfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from savedfiles import NAMESPACE, Asking, archive, overlapping, saved, tensor_pickle, touching

from compatkit.components.checkpoints import unpickle_subprocess
from compatkit.components.checkpoints.reading import Limits, format_of, read_checkpoint, unpickled
from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError, UnsafeCheckpoint, UsageError

STATE = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.ones(2)}


def written(folder: Path, data: bytes, name: str = "net.pth") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_tensors_come_through_with_the_rest_left_out(tmp_path: Path) -> None:
    """In one file: what training programs save beside the weights, which is replaced by objects that do nothing."""
    beside = {
        "args": NAMESPACE,
        "best": np.float64(0.5),
        "curve": np.arange(3),
        "path": Path("/x"),
        "epoch": 3,
    }
    path = written(tmp_path, saved({"model": STATE, **beside}))
    result = read_checkpoint(path)
    assert result.format == "zip" and result.name == "net.pth" and result.bytes == path.stat().st_size
    assert result.tensors.keys() == STATE.keys()
    assert all(torch.equal(result.tensors[name], value) for name, value in STATE.items())
    assert result.notes == ("used the entry 'model', left out 'args', 'best', 'curve', 'path', 'epoch'",)


def test_code_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = written(tmp_path, touching(mark)())
    with pytest.raises(UnsafeCheckpoint, match=r"net.pth: it asks for posix.system\. That is code") as raised:
        read_checkpoint(path)
    assert raised.value.subject == ("posix.system",) and raised.value.code == "unsafe-checkpoint"
    assert not mark.exists() and raised.value.exit_code == IntegrityError.exit_code
    assert "weights_only" not in str(raised.value), "torch's advice to load it without care is not passed on"


BOMBS: dict[str, tuple[bytes, str]] = {
    "compressed": (
        archive(tensor_pickle(2**28, (2**28,), (1,)), bytes(2**24), packed=True),
        "is compressed, which torch.save never does",
    ),
    "overlapping": (overlapping(50), "the entries claim 5[0-9]{7} bytes, the file has 1[0-9]{6}"),
    "script": (
        archive(b"\x80\x02}.", **{"constants.pkl": b"\x80\x02)."}),
        "a TorchScript archive, which contains code",
    ),
    "no torch": (b"PK\x03\x04" + bytes(60), "truncated or damaged"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_archive_that_torch_did_not_write_is_refused_before_torch_sees_it(bomb: str) -> None:
    data, message = BOMBS[bomb]
    with pytest.raises((FormatError, UnsafeCheckpoint), match=message):
        unpickle_subprocess.check_archive(io.BytesIO(data), len(data))


def test_a_tensor_that_repeats_itself_without_end_is_refused(tmp_path: Path) -> None:
    """A thousand million million values, all of them the same four bytes."""
    path = written(tmp_path, archive(tensor_pickle(1, (10**5, 10**5, 10**5), (0, 0, 0)), bytes(4)))
    begun = time.monotonic()
    with pytest.raises(UnsafeCheckpoint, match=r"its tensors need 4000000000000000 bytes"):
        read_checkpoint(path)
    assert time.monotonic() - begun < 120


SLOW: dict[str, tuple[bytes, type[Exception], str]] = {
    "eval": (
        saved({"x": Asking(eval, "1")}),
        UnsafeCheckpoint,
        r"it asks for (builtins\.|__builtin__\.)?eval",
    ),
    "eval, old": (saved({"x": Asking(eval, "1")}, old=True), UnsafeCheckpoint, "eval"),
    "exec": (saved({"x": Asking(exec, "1")}), UnsafeCheckpoint, "exec"),
    "getattr": (saved({"x": Asking(getattr, {}, "pop")}), UnsafeCheckpoint, "getattr"),
    "open": (saved({"x": Asking(builtins.open, "/etc/passwd")}), UnsafeCheckpoint, "open"),
    "import": (
        saved({"x": Asking(importlib.import_module, "os")}),
        UnsafeCheckpoint,
        "importlib.import_module",
    ),
    "system, old": (saved({"x": Asking(os.system, "true")}, old=True), UnsafeCheckpoint, "posix.system"),
    "a whole network": (
        saved(torch.nn.Linear(2, 2)),
        UnsafeCheckpoint,
        "a pickled network, not its state dict",
    ),
    "deep lists": (archive(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."), Exception, ""),
    "deep tuples": (archive(b"\x80\x02" + b"N" + b"\x85" * 200_000 + b"."), Exception, ""),
    "doubling": (
        archive(b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (i + 1, i, i) for i in range(60)) + b"."),
        Exception,
        "",
    ),
    "a huge storage": (
        archive(tensor_pickle(10**15, (4,), (1,)), bytes(16)),
        Exception,
        "",
    ),
    "beyond its storage": (archive(tensor_pickle(4, (10**9,), (1,)), bytes(16)), Exception, ""),
    "negative sizes": (archive(tensor_pickle(4, (-4,), (1,)), bytes(16)), Exception, ""),
    "no data": (
        archive(tensor_pickle(4, (4,), (1,)).replace(b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x009")),
        Exception,
        "",
    ),
    "no pickle": (archive(b""), FormatError, "truncated or damaged"),
    "cut off": (saved(STATE)[:-100], FormatError, "truncated or damaged"),
    "cut off, old": (saved(STATE, old=True)[:-5], FormatError, "truncated or damaged"),
    "cut off early, old": (saved(STATE, old=True)[:60], FormatError, "truncated or damaged"),
    "no tensors": (saved({"epoch": 3}), UsageError, "no entry contains tensors"),
    "a list": (saved([torch.zeros(1)]), UsageError, "got a list"),
    "sparse": (saved({"w": torch.eye(3).to_sparse()}), UsageError, "sparse, quantized or without data"),
    "names that are paths": (saved({"../../x": torch.zeros(1)}), FormatError, r"\.\./\.\./x"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_whatever_it_asks_for_an_error_of_this_library_comes(tmp_path: Path, case: str) -> None:
    data, error, message = SLOW[case]
    path = written(tmp_path, data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((FormatError, UnsafeCheckpoint, UsageError)) as raised:
        read_checkpoint(path)
    assert isinstance(raised.value, error) and str(path) in str(raised.value)
    if message:
        assert raised.match(message)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, f"{grown} kB more in the process that asked"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_limits_of_time_and_memory_stop_it(tmp_path: Path) -> None:
    path = written(tmp_path, saved({"w": torch.zeros(2**22)}))
    size = path.stat().st_size
    for limits in (Limits(2**30, 2**30, 0), Limits(2**20, 2**30, 60), Limits(2**30, 2**20, 60)):
        descriptor = os.open(path, os.O_RDONLY)
        with pytest.raises((UnsafeCheckpoint, FormatError)):
            unpickled(descriptor, size, "zip", str(path), limits=limits)
        os.close(descriptor)


def test_a_real_script_is_named(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch discourages it, and people have such files
        scripted: Any = torch.jit.script(torch.nn.Linear(2, 2))
        scripted.save(str(tmp_path / "net.pt"))
    with pytest.raises(FormatError, match=r"a TorchScript archive, which contains code"):
        read_checkpoint(tmp_path / "net.pt")


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        made.addfile(tarfile.TarInfo("pickle"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (tar(), "it is a tar archive"),
        (b"\x80\x04\x95" + bytes(60), "a pickle that torch.save did not write"),
        (b"\x80\x02}q\x00.", "a pickle that torch.save did not write"),
        (b"PK\x05\x06" + bytes(18), "the zip archive is empty"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "an HDF5 file"),
        (b"GGUF" + bytes(20), "a GGUF file"),
        (b"\x1f\x8b" + bytes(20), "a gzip archive"),
        (b"<!doctype html><html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer"),
        (bytes(600), "zero bytes"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{}", "truncated"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(FormatError, match=message) as raised:
        read_checkpoint(path)
    assert str(path) in str(raised.value)


def test_what_is_no_plain_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="got a folder"):
        read_checkpoint(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="a named pipe"):
        read_checkpoint(tmp_path / "pipe")
    with pytest.raises(EnvironmentFailure, match="there is no such file"):
        read_checkpoint(tmp_path / "nowhere.pth")


def test_the_name_of_a_file_says_nothing_about_its_format(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "net.pth")
    result = read_checkpoint(tmp_path / "net.pth")
    assert result.format == "safetensors" and set(result.tensors) == set(STATE)
    assert format_of(saved(STATE)[:512], 1000) == "zip"
    assert format_of(saved(STATE, old=True)[:512], 1000) == "legacy"
