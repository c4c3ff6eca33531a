"""inspect: a safetensors file from anywhere, told from its header; what is none is refused with the reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compatkit.cli.output import fold, rows


def written(path: Path, header: dict[str, Any], body: bytes = b"") -> Path:
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + body)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWO = {
    "__metadata__": {"format": "pt", "note": "x" * 1000},
    "conv.weight": entry("F32", [4, 3, 2, 2], 0, 192),
    "steps": entry("I64", [], 192, 200),
}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return written(tmp_path / "two.safetensors", TWO, bytes(200))


def test_a_person_sees_sizes_by_dtype_the_tensors_and_the_metadata(run: Any, two: Path) -> None:
    result = run("inspect", two)
    assert result.code == 0 and result.err == ""
    start = 8 + len(json.dumps(TWO))
    for expected in (
        rf"size +{start + 200:,} bytes, {start:,} of them header",
        r"tensors +2 with 49 elements",
        r"F32 +192 bytes, 48 elements in 1 tensors",
        rf"conv\.weight +F32 +4 x 3 x 2 x 2 +192 +{start:,}",
        rf"steps +I64 +scalar +8 +{start + 192:,}",
        r"metadata \(2\)",
        r"format +pt",
    ):
        assert re.search(expected, result.out), expected
    assert "x" * 301 not in result.out and result.out.index("F32") < result.out.index("I64")


def test_programs_get_every_tensor_and_all_of_the_metadata(run: Any, two: Path) -> None:
    document = run("inspect", two, "--json").json
    start = 8 + len(json.dumps(TWO))
    assert document == {
        "file": str(two),
        "bytes": start + 200,
        "header_bytes": start,
        "count": 2,
        "elements": 49,
        "dtypes": {
            "F32": {"tensors": 1, "elements": 48, "bytes": 192},
            "I64": {"tensors": 1, "elements": 1, "bytes": 8},
        },
        "metadata": TWO["__metadata__"],
        "tensors": [
            {"name": "conv.weight", "dtype": "F32", "shape": [4, 3, 2, 2], "bytes": 192, "offset": start},
            {"name": "steps", "dtype": "I64", "shape": [], "bytes": 8, "offset": start + 192},
        ],
    }


def test_a_long_list_is_shortened_for_people_only(run: Any, tmp_path: Path) -> None:
    path = written(
        tmp_path / "f", {f"t{at:03}": entry("U8", [1], at, at + 1) for at in range(200)}, bytes(200)
    )
    result = run("inspect", path)
    assert "t039" in result.out and "t040" not in result.out
    assert "200 tensors, 40 shown; --json lists all" in result.out
    assert len(run("inspect", path, "--json").json["tensors"]) == 200


def test_an_empty_file_of_tensors_is_one(run: Any, tmp_path: Path) -> None:
    result = run("inspect", written(tmp_path / "f", {}))
    assert result.code == 0 and "0 with 0 elements" in result.out


@pytest.mark.skipif(os.name == "nt", reason="needs a file with holes")
def test_of_a_hundred_gigabytes_only_the_header_is_read(run: Any, tmp_path: Path) -> None:
    size = 100 * 10**9
    path = written(tmp_path / "f", {"all": entry("U8", [size], 0, size)})
    os.truncate(path, path.stat().st_size + size)
    assert "100,000,000,000" in run("inspect", path).out


FOREIGN = {
    "a pickle": (b"\x80\x04\x95" + b"x" * 20, "a pickle"),
    "an archive": (b"PK\x03\x04" + b"x" * 20, "zip archive, which is what torch.save writes"),
    "a page": (b"<html><body>Not found</body></html>", "a web page"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "git-lfs pointer"),
    "a message": (b"Entry not found", "text that begins with 'Entry not found'"),
    "JSON": (b'{"metadata": {"total_size": 3}}', "text that begins with"),
    "nothing written": (bytes(4096), "zero bytes, probably from an interrupted copy"),
    "nothing": (b"", "at least 8 bytes, got 0"),
    "cut": (b"\x10\0\0\0\0\0\0\0{}", "claims 16 bytes"),
    "too long": ((100_000_001).to_bytes(8, "little") + b"{}", "claims 100000001 bytes"),
}


@pytest.mark.case("A1", "A10")
@pytest.mark.parametrize(("data", "complaint"), FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_safetensors_file_is_named_with_exit_code_3(
    run: Any, tmp_path: Path, data: bytes, complaint: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    result = run("inspect", path)
    assert result.code == 3 and result.out == "" and complaint in result.err and str(path) in result.err
    machine = run("inspect", path, "--json")
    assert machine.code == 3 and machine.json["error"]["code"] == "format"


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        (b"\xff\xd8\xff\xe0", "a JPEG picture"),
        (b"GIF89a", "a GIF picture"),
        (b"%PDF-1.7", "a PDF document"),
    ],
)
def test_a_picture_is_told_as_one(run: Any, tmp_path: Path, head: bytes, what: str) -> None:
    path = tmp_path / "m.png"
    path.write_bytes(head + bytes(100))
    result = run("inspect", path)
    assert result.code == 3 and f"expected a safetensors file, got {what}" in result.err


def test_a_file_that_is_not_there_is_no_damaged_one(run: Any, tmp_path: Path) -> None:
    result = run("inspect", tmp_path / "none.safetensors")
    assert result.code == 4 and "there is no such file" in result.err


@pytest.mark.case("C1")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    ("kind", "word"), [("folder", "a folder"), ("pipe", "a named pipe"), ("device", "a device")]
)
def test_folders_pipes_and_devices_are_refused_without_waiting(
    run: Any, tmp_path: Path, kind: str, word: str
) -> None:
    path = tmp_path / "f" if kind != "device" else Path(os.devnull)
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "device": lambda: None}[kind]()
    result = run("inspect", path)
    assert result.code == 3 and word in result.err


def test_names_and_metadata_cannot_drive_the_terminal(run: Any, tmp_path: Path) -> None:
    path = written(
        tmp_path / "f", {"__metadata__": {"\x1b[2J": "\u202egone"}, "a b": entry("U8", [], 0, 1)}, b"x"
    )
    result = run("inspect", path)
    assert (
        result.code == 0
        and "\x1b" not in result.out
        and "\u202e" not in result.out
        and "\\x1b[2J" in result.out
    )


def test_labels_cannot_drive_the_terminal_and_stay_on_their_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert fold("a\x1b[2J\nb", "c\x07", indent=2, size=4) == "  a\\x1b[2J b  c\\x07"
    rows({"\x1b": "first", "long": "second"})
    assert capsys.readouterr().out == "  \\x1b  first\n  long  second\n"


def test_no_tensor_library_is_imported(two: Path) -> None:
    program = (
        "import sys\n"
        "from compatkit.cli.inspect import inspect_command\n"
        "inspect_command([sys.argv[1]], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program, str(two)], check=True, capture_output=True)
