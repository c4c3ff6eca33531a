"""Tensor files: what is stored comes back bit for bit; hostile, damaged and foreign files are refused."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable

import pytest
import torch

from compatkit.errors import FormatError
from compatkit.registry.header import DTYPES, MAX_TENSORS, check_header
from compatkit.registry.tensorfile import (
    deserialise,
    metadata,
    serialise,
    state_digest,
    tensor_digest,
)

MakeFile = Callable[..., bytes]


def entry(shape: list[int], begin: int, end: int, dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = {
        name: torch.randint(0, 2, (2, 3), generator=generator).to(getattr(torch, name))
        for name, _ in DTYPES.values()
    }
    weight = torch.randn(4, 3, 5, 5, generator=generator)
    return made | {
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "turned": torch.randn(3, 4, generator=generator).t(),
        "channels_last": weight.to(memory_format=torch.channels_last),
        "view": weight[1],
        "tied": weight,
        "nan": torch.tensor([float("nan"), float("inf")]),
    }


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    flat = [one.contiguous().reshape(-1).view(torch.uint8) for one in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


def test_every_dtype_and_layout_comes_back_bit_for_bit():
    given = state()
    back = deserialise(serialise(given))
    assert back.keys() == given.keys()
    assert all(same_bits(back[name], given[name]) for name in given)


def test_loaded_tensors_can_be_written():
    deserialise(serialise({"a": torch.zeros(3)}))["a"].add_(1)


def test_the_same_state_gives_the_same_bytes_whatever_the_order():
    given = state()
    assert len({serialise(dict(sorted(given.items(), reverse=flip)), "note") for flip in (True, False)}) == 1


def test_metadata_is_one_text_and_not_part_of_the_tensor_digest():
    given = {"a": torch.arange(3)}
    plain, noted = serialise(given), serialise(given, metadata='{"step": 3}')
    assert metadata(plain) is None and metadata(noted) == '{"step": 3}'
    assert plain != noted and tensor_digest(plain) == tensor_digest(noted)


def test_the_tensor_digest_by_hand():
    a, b = torch.tensor([1, 2], dtype=torch.int16), torch.tensor(1.0)
    whole = b""
    for name, dtype, shape, content in (
        (b"a", b"I16", b"2", b"\x01\x00\x02\x00"),
        (b"b", b"F32", b"", b"\x00\x00\x80\x3f"),
    ):
        for field in (name, dtype, shape, hashlib.sha256(content).digest()):
            whole += len(field).to_bytes(8, "little") + field
    expected = f"tensors:sha256:{hashlib.sha256(whole).hexdigest()}"
    assert state_digest({"b": b, "a": a}) == expected == tensor_digest(serialise({"a": a, "b": b}))


def test_digest_in_memory_and_from_the_file_agree():
    assert state_digest(state()) == tensor_digest(serialise(state()))


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.zeros(2, 3), "b": torch.ones(1)},
        {"a": torch.zeros(3, 2)},
        {"b": torch.zeros(2, 3)},
        {"a": torch.zeros(2, 3, dtype=torch.float64)},
        {"a": -torch.zeros(2, 3)},
    ],
    ids=["more", "shape", "name", "dtype", "sign of zero"],
)
def test_any_difference_changes_the_digest(other: dict[str, torch.Tensor]):
    assert state_digest(other) != state_digest({"a": torch.zeros(2, 3)})


def test_parameters_that_need_gradients_are_stored():
    weight = torch.nn.Parameter(torch.ones(2))
    assert same_bits(deserialise(serialise({"w": weight}))["w"], weight.detach())
    assert state_digest({"w": weight}) == state_digest({"w": weight.detach()})


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"a": torch.zeros(2).to_sparse()}, "dense"),
        ({"a": torch.zeros(2, device="meta")}, "dense tensors with data"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "cannot be stored"),
        ({"a": [1, 2]}, "expected a tensor, got list"),
        ({"": torch.zeros(2)}, "not safe"),
        ({"__metadata__": torch.zeros(2)}, "not safe"),
        ({"../x": torch.zeros(2)}, "not safe"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(bad: dict[str, torch.Tensor], complaint: str):
    for function in (serialise, state_digest):
        with pytest.raises(FormatError, match=complaint):
            function(bad)


def test_a_header_lists_tensors_in_the_order_of_their_bytes(make_file: MakeFile):
    found = check_header(make_file({"b": entry([1], 2, 3), "a": entry([2], 0, 2)}, b"xyz"))
    assert [(one.name, one.stop - one.start) for one in found.tensors] == [("a", 2), ("b", 1)]
    assert found.metadata == {}


def huge(length: int, rest: bytes = b"{}") -> bytes:
    return length.to_bytes(8, "little") + rest


LENGTHS = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "length zero": huge(0),
    "length one": huge(1, b"{"),
    "length 2**63": huge(2**63),
    "length beyond the file": huge(3),
    "length above the cap": huge(100_000_001),
    "huge length, small file": huge(99_999_999),
}


@pytest.mark.parametrize("data", LENGTHS.values(), ids=LENGTHS)
def test_the_header_length_is_checked_before_anything_is_read(data: bytes):
    with pytest.raises(FormatError):
        deserialise(data)


U8 = entry([2], 0, 2)
HEADERS = {
    "not UTF-8": (b'{"\xff":{}}', b"", "UTF-8"),
    "not JSON": (b"{nonsense}", b"", "not valid JSON"),
    "a list": (b"[]", b"", "begin with '{'"),
    "leading space": (b" {}", b"", "begin with '{'"),
    "text after the object": (b"{} x", b"", "not valid JSON"),
    "deep": (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b"", "deeper"),
    "NaN": (b'{"a":NaN}', b"", "NaN"),
    "twice, identical": (
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b"xy",
        "'a' appears twice",
    ),
    "twice, inside an entry": (
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}}',
        b"xy",
        "twice",
    ),
    "overlap": ({"a": U8, "b": entry([2], 1, 3)}, b"xyz", "overlaps"),
    "same place": ({"a": U8, "b": U8}, b"xy", "overlaps"),
    "hole": ({"a": U8, "b": entry([2], 3, 5)}, b"vwxyz", "hole"),
    "hole at the start": ({"a": entry([2], 1, 3)}, b"xyz", "hole"),
    "reversed": ({"a": entry([2], 2, 0)}, b"xy", "begin, end"),
    "negative": ({"a": entry([2], -2, 0)}, b"xy", "begin, end"),
    "trailing bytes": ({"a": U8}, b"xyz", "trailing"),
    "bytes but no tensor": ({}, b"x", "trailing"),
    "truncated body": ({"a": U8}, b"x", "truncated"),
    "size differs": ({"a": entry([3], 0, 2)}, b"xy", "needs 3 bytes"),
    "product overflows": ({"a": entry([2**62, 2**62], 0, 2)}, b"xy", "needs"),
    "zero hides a huge shape": ({"a": entry([0, 10**15], 0, 0)}, b"", "needs 0"),
    "negative length": ({"a": entry([-2], 0, 2)}, b"xy", "shape"),
    "length 2**63": ({"a": entry([2**63], 0, 2)}, b"xy", "shape"),
    "length true": ({"a": entry([True, 2], 0, 2)}, b"xy", "shape"),  # type: ignore[list-item]
    "length 2.0": ({"a": entry([2.0], 0, 2)}, b"xy", "shape"),  # type: ignore[list-item]
    "rank 33": ({"a": entry([1] * 33, 0, 1)}, b"x", "at most 32"),
    "one offset": ({"a": {**U8, "data_offsets": [2]}}, b"xy", "begin, end"),
    "below one byte": ({"a": entry([4], 0, 2, "F4")}, b"xy", "dtype 'F4'"),
    "unknown dtype": ({"a": entry([2], 0, 2, "O")}, b"xy", "dtype 'O'"),
    "dtype in lower case": ({"a": entry([2], 0, 2, "u8")}, b"xy", "dtype 'u8'"),
    "unknown field": ({"a": {**U8, "note": 1}}, b"xy", "exactly dtype"),
    "missing field": ({"a": {"dtype": "U8", "shape": [2]}}, b"xy", "exactly dtype"),
    "entry is text": ({"a": "U8"}, b"", "exactly dtype"),
    "metadata is a number": ({"__metadata__": {"a": 1}}, b"", "strings to strings"),
    "metadata is a list": ({"__metadata__": []}, b"", "strings to strings"),
}


@pytest.mark.parametrize(("header", "body", "complaint"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_could_be_read_in_two_ways_is_refused(
    make_file: MakeFile, header: object, body: bytes, complaint: str
):
    with pytest.raises(FormatError, match=complaint):
        deserialise(make_file(header, body))


NAMES = [
    "",
    "../../x",
    "a/../b",
    "/etc/x",
    "a\\b",
    "C:x",
    "a\0b",
    "a\nb",
    "e\u0301",
    "x" * 513,
    "x" * 10_000,
    "..",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:10]))
def test_unsafe_tensor_names_are_refused(make_file: MakeFile, name: str):
    with pytest.raises(FormatError, match="tensor name"):
        check_header(make_file({name: entry([1], 0, 1)}, b"x"))


@pytest.mark.parametrize("name", ["layer1.0.conv1.weight", "é", "a/b", "a b", "x" * 512, "..a"])
def test_ordinary_tensor_names_are_read(make_file: MakeFile, name: str):
    assert check_header(make_file({name: entry([1], 0, 1)}, b"x")).tensors[0].name == name


def test_too_many_tensors_are_refused(make_file: MakeFile, monkeypatch: pytest.MonkeyPatch):
    assert MAX_TENSORS == 100_000
    monkeypatch.setattr("compatkit.registry.header.MAX_TENSORS", 10)
    header = {f"t{index}": entry([0], 0, 0) for index in range(11)}
    with pytest.raises(FormatError, match="at most 10 tensors"):
        check_header(make_file(header))


def test_trailing_spaces_pad_a_header(make_file: MakeFile):
    assert len(check_header(make_file(json.dumps({"a": U8}).encode() + b"   ", b"xy")).tensors) == 1


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
}


@pytest.mark.parametrize(("data", "complaint"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_another_format_is_named(data: bytes, complaint: str):
    with pytest.raises(FormatError, match=complaint):
        deserialise(data)


def test_a_header_length_that_looks_like_a_pickle_is_read(make_file: MakeFile):
    header = json.dumps({"a": U8}).encode().ljust(0x0280)  # the file begins with 80 02, as a pickle does
    assert check_header(make_file(header, b"xy")).tensors[0].name == "a"


def test_cut_files_are_refused_at_every_length():
    data = serialise({"a": torch.arange(3), "b": torch.ones(2)})
    for length in range(len(data)):
        with pytest.raises(FormatError):
            check_header(data[:length])


def test_random_damage_of_the_header_never_ends_in_another_error():
    data, numbers = serialise(state()), random.Random(0)
    length = 8 + int.from_bytes(data[:8], "little")
    for _ in range(500):
        damaged = bytearray(data)
        damaged[numbers.randrange(length)] ^= 1 << numbers.randrange(8)
        try:
            deserialise(bytes(damaged))
        except FormatError:
            continue
