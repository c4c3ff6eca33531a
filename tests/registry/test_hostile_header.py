"""Tensor files from strangers: whatever could be read in two ways, is another format, or only claims its size."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from compatkit.errors import FormatError
from compatkit.registry.weights import header
from compatkit.registry.weights.header import MAX_HEADER, MAX_TENSORS, check_header
from compatkit.registry.weights.tensorfile import deserialize, serialize

MakeFile = Callable[..., bytes]
MIB = 2**20


def entry(shape: list[Any], begin: int, end: int, dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def claiming(length: int, rest: bytes = b"{}") -> bytes:
    return length.to_bytes(8, "little") + rest


LENGTHS = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "length zero": claiming(0),
    "length one": claiming(1, b"{"),
    "length 2**63": claiming(2**63),
    "length 2**64 - 1": claiming(2**64 - 1),
    "length beyond the file": claiming(3),
    "length above the cap": claiming(MAX_HEADER + 1),
    "huge length, small file": claiming(MAX_HEADER),
}


@pytest.mark.case("A1")
@pytest.mark.parametrize("data", LENGTHS.values(), ids=LENGTHS)
def test_a_length_is_checked_before_anything_is_read_or_allocated(data: bytes):
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"safetensors|text"):
            check_header(data)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


U8 = entry([2], 0, 2)
TWICE = b'"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
JSON = {
    "not UTF-8": (b'{"\xff":{}}', "UTF-8"),
    "not JSON": (b"{nonsense}", "not valid JSON"),
    "a list": (b"[]", "begin with '{'"),
    "leading space": (b" {}", "begin with '{'"),
    "leading byte order mark": (b"\xef\xbb\xbf{}", "begin with '{'"),
    "text behind": (b"{} x", "not valid JSON"),
    "zero bytes behind": (b"{}\0\0", "not valid JSON"),
    "5 deep": (b'{"a":[[[[]]]]}', "deeper"),
    "5,000 deep": (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "deeper"),
    "1,000,000 deep": (b'{"a":' + b"[" * 10**6 + b"]" * 10**6 + b"}", "deeper"),
    "NaN": (b'{"a":NaN}', "NaN"),
    "minus zero": (b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', "-0"),
    "a lone surrogate": (b'{"\\ud800":{}}', "surrogate"),
    "an integer of 5,000 digits": (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
}


@pytest.mark.case("A2")
@pytest.mark.parametrize(("raw", "complaint"), JSON.values(), ids=JSON)
def test_a_header_is_strict_json(make_file: MakeFile, raw: bytes, complaint: str):
    with pytest.raises(FormatError, match=complaint):
        deserialize(make_file(raw))


@pytest.mark.case("A2")
def test_trailing_spaces_pad_a_header(make_file: MakeFile):
    padded = json.dumps({"a": U8}).encode() + b"   "
    assert len(check_header(make_file(padded, b"xy")).tensors) == 1


@pytest.mark.case("A5")
@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"{" + TWICE + b"," + TWICE + b"}", "'a' appears twice"),
        (b"{" + TWICE + b"," + TWICE.replace(b"U8", b"I8") + b"}", "'a' appears twice"),
        (b'{"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}}', "'dtype' appears twice"),
        (b'{"__metadata__":{},"__metadata__":{},' + TWICE + b"}", "'__metadata__' appears twice"),
        (b'{"__metadata__":{"x":"1","x":"1"},' + TWICE + b"}", "'x' appears twice"),
        (b"{" + TWICE + b"," + TWICE.replace(b'"a"', b'"\\u0061"') + b"}", "'a' appears twice"),
    ],
    ids=["identical", "different", "in an entry", "metadata", "in the metadata", "written as an escape"],
)
def test_a_key_stands_once(make_file: MakeFile, raw: bytes, complaint: str):
    with pytest.raises(FormatError, match=complaint):
        deserialize(make_file(raw, b"xy"))


PLACES = {
    "overlap": ({"a": U8, "b": entry([2], 1, 3)}, b"xyz", "overlaps"),
    "same place": ({"a": U8, "b": U8}, b"xy", "overlaps"),
    "hole": ({"a": U8, "b": entry([2], 3, 5)}, b"vwxyz", "gap"),
    "hole at the start": ({"a": entry([2], 1, 3)}, b"xyz", "gap"),
    "reversed": ({"a": entry([2], 2, 0)}, b"xy", "data_offsets"),
    "negative": ({"a": entry([-2], -2, 0)}, b"xy", "shape"),
    "negative offset": ({"a": entry([2], -2, 0)}, b"xy", "data_offsets"),
    "trailing bytes": ({"a": U8}, b"xyz", "trailing"),
    "bytes but no tensor": ({}, b"x", "trailing"),
    "truncated body": ({"a": U8}, b"x", "truncated"),
    "no body": ({"a": U8}, b"", "truncated"),
    "size differs": ({"a": entry([3], 0, 2)}, b"xy", "needs 3 bytes"),
    "product overflows": ({"a": entry([2**62, 2**62], 0, 2)}, b"xy", "needs"),
    "product overflows to the right size": ({"a": entry([2**32, 2**32, 2], 0, 0)}, b"", "needs"),
    "zero hides a huge length": ({"a": entry([0, 10**15], 0, 0)}, b"", "its other axes are too long"),
    "zero hides a huge product": ({"a": entry([2**40, 0, 2**40], 0, 0)}, b"", "its other axes are too long"),
    "length 2**63": ({"a": entry([2**63], 0, 2)}, b"xy", "shape"),
    "offset 2**64": ({"a": entry([2], 2**64, 2**64 + 2)}, b"xy", "data_offsets"),
    "length true": ({"a": entry([True, 2], 0, 2)}, b"xy", "shape"),
    "length 2.0": ({"a": entry([2.0], 0, 2)}, b"xy", "shape"),
    "length is text": ({"a": entry(["2"], 0, 2)}, b"xy", "shape"),
    "shape is a number": ({"a": {**U8, "shape": 2}}, b"xy", "shape"),
    "rank 33": ({"a": entry([1] * 33, 0, 1)}, b"x", "at most 32"),
    "one offset": ({"a": {**U8, "data_offsets": [2]}}, b"xy", "data_offsets"),
    "three offsets": ({"a": {**U8, "data_offsets": [0, 1, 2]}}, b"xy", "data_offsets"),
    "below one byte": ({"a": entry([4], 0, 2, "F4")}, b"xy", "dtype 'F4'"),
    "half a byte": ({"a": entry([3], 0, 2, "F4")}, b"xy", "dtype 'F4'"),
}


@pytest.mark.case("A3")
@pytest.mark.parametrize(("raw", "body", "complaint"), PLACES.values(), ids=PLACES)
def test_tensors_cover_the_file_exactly(make_file: MakeFile, raw: object, body: bytes, complaint: str):
    with pytest.raises(FormatError, match=complaint):
        deserialize(make_file(raw, body))


TYPES = {
    "unknown dtype": ({"a": entry([2], 0, 2, "O")}, "dtype 'O'"),
    "dtype in lower case": ({"a": entry([2], 0, 2, "u8")}, "dtype 'u8'"),
    "dtype of another library": ({"a": entry([2], 0, 2, ">f4")}, "dtype '>f4'"),
    "dtype is a list": ({"a": {**U8, "dtype": ["U8"]}}, r"^safetensors\.a\: .*dtype"),
    "unknown field": ({"a": {**U8, "note": 1}}, r"^safetensors\.a"),
    "missing field": ({"a": {"dtype": "U8", "shape": [2]}}, r"^safetensors\.a"),
    "entry is text": ({"a": "U8"}, r"^safetensors\.a"),
    "entry is null": ({"a": None}, r"^safetensors\.a"),
    "metadata is a number": ({"__metadata__": {"a": 1}}, r"^safetensors\.__metadata__"),
    "metadata is nested": ({"__metadata__": {"a": {"b": "c"}}}, r"^safetensors\.__metadata__"),
    "metadata is a list": ({"__metadata__": []}, r"^safetensors\.__metadata__"),
    "metadata is null": ({"__metadata__": None}, r"^safetensors\.__metadata__"),
}


@pytest.mark.case("A4", "A11")
@pytest.mark.parametrize(("raw", "complaint"), TYPES.values(), ids=TYPES)
def test_types_and_metadata_are_those_of_the_format(make_file: MakeFile, raw: object, complaint: str):
    with pytest.raises(FormatError, match=complaint):
        deserialize(make_file(raw, b"xy"))


NAMES = [
    "",
    "../../x",
    "a/../b",
    "/etc/x",
    "a\\b",
    "C:x",
    "C:/x",
    "..\\x",
    "\\\\server\\share",
    "a\0b",
    "a\nb",
    "..",
]
NAMES += ["e\u0301", "x" * 513, "x" * 10_000, "\u00e9" * 257]
NAMES += ["a\x9b31m", "a\u202eb", "a\u200bb", "a\u2028b", "\ufeffa"]


@pytest.mark.case("A6", "B1", "B3")
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:10]))
def test_unsafe_tensor_names_are_refused(make_file: MakeFile, name: str):
    with pytest.raises(FormatError, match="tensor name"):
        check_header(make_file({name: entry([1], 0, 1)}, b"x"))


@pytest.mark.case("A6")
def test_a_tensor_cannot_be_named_like_the_metadata(make_file: MakeFile):
    with pytest.raises(FormatError, match=r"^safetensors\.__metadata__"):
        check_header(make_file({"__metadata__": entry([1], 0, 1)}, b"x"))


@pytest.mark.case("A6")
def test_twins_of_one_look_cannot_stand_side_by_side(make_file: MakeFile):
    with pytest.raises(FormatError, match="composed form"):
        check_header(make_file({"\u00e9": entry([1], 0, 1), "e\u0301": entry([1], 1, 2)}, b"xy"))


@pytest.mark.parametrize("name", ["layer1.0.conv1.weight", "é", "a/b", "a b", "x" * 512, "..a", "権"])
def test_ordinary_tensor_names_are_read(make_file: MakeFile, name: str):
    assert check_header(make_file({name: entry([1], 0, 1)}, b"x")).tensors[0].name == name


def empties(count: int) -> bytes:
    first = '"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(first % at for at in range(count)) + "}").encode()


@pytest.mark.case("A7")
def test_too_many_tensors_of_no_size_are_refused(make_file: MakeFile, monkeypatch: pytest.MonkeyPatch):
    assert MAX_TENSORS == 50_000
    monkeypatch.setattr(header, "MAX_TENSORS", 100)
    assert len(check_header(make_file(empties(100))).tensors) == 100
    with pytest.raises(FormatError, match="at most 100 tensors, the header lists 101"):
        check_header(make_file(empties(101)))


@pytest.mark.slow
@pytest.mark.case("A7")
def test_four_hundred_thousand_tensors_of_no_size_are_refused(make_file: MakeFile):
    with pytest.raises(FormatError, match="at most 50000 tensors, the header lists 400000"):
        check_header(make_file(empties(400_000)))


@pytest.mark.case("A7")
@pytest.mark.parametrize("most", [20_000, pytest.param(MAX_TENSORS, marks=pytest.mark.slow)])
def test_ten_times_the_tensors_take_about_ten_times_as_long(make_file: MakeFile, most: int):
    took: list[float] = []
    for count in (most // 10, most):
        data, times = make_file(empties(count)), list[float]()
        for _ in range(3):
            start = time.process_time()
            assert len(check_header(data).tensors) == count
            times.append(time.process_time() - start)
        took.append(min(times))
    # what takes a time that grows with the square takes 100 times as long; a busy machine doubles and halves any time
    assert took[1] < 8 and took[1] < 60 * max(took[0], 0.02)


@pytest.mark.case("A7")
@pytest.mark.parametrize("unit", [b"[]", b"{}", b"0", b'""'], ids=["lists", "objects", "numbers", "texts"])
def test_small_values_that_would_fill_the_memory_are_refused_before_they_are_made(
    make_file: MakeFile, monkeypatch: pytest.MonkeyPatch, unit: bytes
):
    monkeypatch.setattr(header, "MAX_VALUES", 100_000)  # of 2,000,000
    data = make_file(b'{"a":[' + b",".join([unit] * 100_001) + b"]}")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="at most 100000 commas and opening brackets"):
            check_header(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


def archive() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 100)
    return made.getvalue()


FOREIGN = {
    "pickle": (pickle.dumps({"a": [1.0] * 20}), "a pickle .unpickling runs code"),
    "torch.save": (archive(), "zip archive, which is what torch.save writes"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
    "HTML": (b"\n <!DOCTYPE html><html><body>Not found</body></html>", "web page"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 64, "HDF5"),
    "gzip": (b"\x1f\x8b\x08" + b"\0" * 64, "gzip"),
    "NumPy": (b"\x93NUMPY\x01\x00" + b"\0" * 64, "NumPy"),
    "GGUF": (b"GGUF" + b"\0" * 64, "GGUF"),
    "a message": (b"Invalid username or password.", "text that begins with 'Invalid username"),
    "an index": (b'{"metadata": {}, "weight_map": {}}', "text that begins with"),
    "never written": (bytes(4096), "zero bytes, probably from an interrupted copy"),
}


@pytest.mark.case("A10")
@pytest.mark.parametrize(("data", "complaint"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_another_format_is_named(data: bytes, complaint: str):
    with pytest.raises(FormatError, match=complaint):
        deserialize(data)


@pytest.mark.case("A10")
def test_a_pickle_is_never_opened(tmp_path: Path):
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    buffer = io.BytesIO()
    torch.save({"weight": Trap()}, buffer)
    for protocol in range(6):
        for data in (pickle.dumps(Trap(), protocol), buffer.getvalue()):
            with pytest.raises(FormatError):
                deserialize(data)
    assert not (tmp_path / "sprung").exists()


def test_a_header_length_that_looks_like_a_pickle_is_read(make_file: MakeFile):
    header = json.dumps({"a": U8}).encode().ljust(0x0280)  # the file begins with 80 02, as a pickle does
    assert check_header(make_file(header, b"xy")).tensors[0].name == "a"


@pytest.mark.case("A3")
def test_cut_files_are_refused_at_every_length():
    data = serialize({"a": torch.arange(3), "b": torch.ones(2)})
    for length in range(len(data)):
        with pytest.raises(FormatError):
            check_header(data[:length])


def test_random_damage_of_the_header_never_ends_in_another_error():
    data, numbers = serialize({"a": torch.arange(3), "b": torch.ones(2, 2)}, "note"), random.Random(0)
    length = 8 + int.from_bytes(data[:8], "little")
    for _ in range(500):
        damaged = bytearray(data)
        damaged[numbers.randrange(length)] ^= 1 << numbers.randrange(8)
        try:
            deserialize(bytes(damaged))
        except FormatError:
            continue
