"""The header of a file on disk: read alone, whatever the file's size, and never from what is no plain file."""

from __future__ import annotations

import os
import socket
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError
from compatkit.registry.weights import header
from compatkit.registry.weights.header import MAX_HEADER, check_header, read_header

MakeFile = Callable[..., bytes]
BODY = 2**20
ONE = {"a": {"dtype": "U8", "shape": [BODY], "data_offsets": [0, BODY]}}


@pytest.fixture
def path(tmp_path: Path, make_file: MakeFile) -> Path:
    made = tmp_path / "model.safetensors"
    made.write_bytes(make_file(ONE, bytes(BODY)))
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many bytes each read asks for."""
    request: list[int] = []
    exactly = header._read_exactly

    def counting(file: object, size: int, path: Path) -> bytes:
        request.append(size)
        return exactly(file, size, path)  # type: ignore[arg-type]

    monkeypatch.setattr(header, "_read_exactly", counting)
    return request


def test_a_file_says_what_its_bytes_say(path: Path):
    result = read_header(path)
    assert result == check_header(path.read_bytes()) == read_header(str(path))
    assert result.start == path.stat().st_size - BODY and result.size == path.stat().st_size


@pytest.mark.skipif(os.name == "nt", reason="needs files with holes")
@pytest.mark.case("H")
def test_of_a_hundred_gigabytes_only_the_header_is_read(
    tmp_path: Path, make_file: MakeFile, reads: list[int]
):
    size = 100 * 10**9
    data = make_file({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    (tmp_path / "f").write_bytes(data)
    os.truncate(tmp_path / "f", len(data) + size)
    assert read_header(tmp_path / "f").tensors[0].stop == len(data) + size
    assert sum(reads) <= 512 + len(data)


@pytest.mark.case("A1")
@pytest.mark.skipif(os.name == "nt", reason="needs files with holes")
@pytest.mark.parametrize("claimed", [MAX_HEADER, MAX_HEADER + 1, 2**62])
def test_a_claim_that_a_large_file_could_keep_is_not_believed(tmp_path: Path, claimed: int, reads: list[int]):
    (tmp_path / "f").write_bytes(claimed.to_bytes(8, "little"))
    os.truncate(tmp_path / "f", 2 * MAX_HEADER)  # zeros, which take no room on the disk
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"begin with|claims"):
            read_header(tmp_path / "f")
        assert tracemalloc.get_traced_memory()[1] < 2**20 and sum(reads) <= 512
    finally:
        tracemalloc.stop()


@pytest.mark.case("A1", "A10")
@pytest.mark.parametrize("data", [b"", b"1234567", b"PK\x03\x04" + bytes(30), b"\x80\x04\x95" + bytes(30)])
def test_the_error_names_the_file(tmp_path: Path, data: bytes):
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_header(tmp_path / "f")
    assert str(caught.value).startswith(f"{tmp_path / 'f'}: ") and caught.value.subject == tmp_path / "f"


def test_a_link_to_a_file_of_the_user_is_followed(path: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(path)
    assert read_header(tmp_path / "link") == read_header(path)


@pytest.mark.case("C1")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    ("kind", "message"),
    [("folder", "a folder"), ("pipe", "a named pipe"), ("socket", "a socket"), ("device", "a device")],
)
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "through a link"])
def test_what_is_no_plain_file_is_refused_without_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, message: str, linked: bool
):
    path = tmp_path / "f"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)  # the path of a socket is at most 108 bytes
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("f")
    else:
        path = Path("/dev/zero")
    if linked:
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    monkeypatch.setattr(header.os, "open", lambda *args: pytest.fail("opened"))
    start = time.monotonic()
    with pytest.raises(FormatError, match=f"expected a safetensors file, got {message}"):
        read_header(path)
    assert time.monotonic() - start < 5


@pytest.mark.case("A9")
@pytest.mark.parametrize("change", ["grows", "shrinks", "is replaced", "becomes a pipe"])
def test_a_file_that_changes_meanwhile_is_one_clear_error(
    path: Path, tmp_path: Path, make_file: MakeFile, monkeypatch: pytest.MonkeyPatch, change: str
):
    if change == "becomes a pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    really = os.open

    def late(*args: object) -> int:
        if change == "grows":
            path.write_bytes(path.read_bytes() + b"x")
        elif change == "shrinks":
            os.truncate(path, 9)
        else:
            path.rename(tmp_path / "before")
            if change == "is replaced":
                path.write_bytes(make_file({}))
            else:
                os.mkfifo(path)
        return really(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(header.os, "open", late)
    with pytest.raises(IntegrityError, match=r"changed while it was read|claims|a named pipe"):
        read_header(path)


def test_a_file_that_shrinks_while_it_is_read_is_one_clear_error(path: Path, monkeypatch: pytest.MonkeyPatch):
    really = os.fstat

    def cut(descriptor: int) -> os.stat_result:
        state = really(descriptor)
        os.truncate(path, 20)
        return state

    monkeypatch.setattr(header.os, "fstat", cut)
    with pytest.raises(IntegrityError, match="changed while it was read"):
        read_header(path)


@pytest.mark.case("C2")
@pytest.mark.parametrize("name", ["none", "none/below", "f/below", "a\0b", "\udcff", "x" * 5000])
def test_a_path_that_leads_nowhere_is_no_damaged_file(tmp_path: Path, name: str):
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(EnvironmentFailure, match="could not read") as caught:
        read_header(tmp_path / name)
    assert caught.value.exit_code == 4
