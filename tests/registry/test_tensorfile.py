"""Tensor files: what is stored comes back bit for bit, whatever its type and layout; digests ignore order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from compatkit.errors import FormatError
from compatkit.registry.weights.header import DTYPES, check_header
from compatkit.registry.weights.tensorfile import (
    deserialize,
    metadata,
    pieces_and_digest,
    serialize,
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
    flat = [item.contiguous().reshape(-1).view(torch.uint8) for item in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


@pytest.mark.case("A8", "A11")
def test_every_dtype_and_layout_comes_back_bit_for_bit():
    inputs = state()
    back = deserialize(serialize(inputs))
    assert back.keys() == inputs.keys()
    assert all(same_bits(back[name], inputs[name]) for name in inputs)


def test_loaded_tensors_can_be_written():
    deserialize(serialize({"a": torch.zeros(3)}))["a"].add_(1)


def test_the_same_state_gives_the_same_bytes_whatever_the_order():
    inputs = state()
    assert len({serialize(dict(sorted(inputs.items(), reverse=flip)), "note") for flip in (True, False)}) == 1


def test_metadata_is_one_text_and_not_part_of_the_tensor_digest():
    settings = {"a": torch.arange(3)}
    plain, noted = serialize(settings), serialize(settings, metadata='{"step": 3}')
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
    assert state_digest({"b": b, "a": a}) == expected == tensor_digest(serialize({"a": a, "b": b}))


def test_digest_in_memory_and_from_the_file_agree():
    assert state_digest(state()) == tensor_digest(serialize(state()))


def test_pieces_and_digest_of_one_look_are_those_of_two():
    pieces, digest = pieces_and_digest(state())
    assert b"".join(pieces) == serialize(state()) and digest() == state_digest(state())


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
    assert same_bits(deserialize(serialize({"w": weight}))["w"], weight.detach())
    assert state_digest({"w": weight}) == state_digest({"w": weight.detach()})


@pytest.mark.case("A11")
def test_tied_tensors_are_stored_once_a_name_and_come_back_apart():
    weight = torch.arange(4.0)
    back = deserialize(serialize({"a": weight, "b": weight, "part": weight[1:3]}))
    back["a"].zero_()
    assert back["b"].tolist() == [0, 1, 2, 3] and back["part"].tolist() == [1, 2]


@pytest.mark.case("A11", "G")
def test_buffers_alone_are_a_state():
    norm = torch.nn.BatchNorm2d(3, affine=False)
    norm(torch.randn(4, 3, 2, 2))
    back = deserialize(serialize(norm.state_dict()))
    assert back.keys() == {"running_mean", "running_var", "num_batches_tracked"}
    assert same_bits(back["num_batches_tracked"], torch.tensor(1)) and back["num_batches_tracked"].shape == ()
    torch.nn.BatchNorm2d(3, affine=False).load_state_dict(back, strict=True)


@pytest.mark.case("A6", "A11", "G")
@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"a": np.zeros(2, dtype=">f4")}, "expected a tensor, got ndarray"),
        ({"a": np.array([object()])}, "expected a tensor, got ndarray"),
        ({"a": torch.zeros(2).to_sparse()}, "dense"),
        ({"a": torch.zeros(2, device="meta")}, "dense tensor with data"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "cannot be stored"),
        ({"a": [1, 2]}, "expected a tensor, got list"),
        ({"": torch.zeros(2)}, "not safe"),
        ({"__metadata__": torch.zeros(2)}, "not safe"),
        ({"../x": torch.zeros(2)}, "not safe"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(bad: dict[str, torch.Tensor], complaint: str):
    for function in (serialize, state_digest):
        with pytest.raises(FormatError, match=complaint):
            function(bad)


def test_a_header_lists_tensors_in_the_order_of_their_bytes(make_file: MakeFile):
    result = check_header(make_file({"b": entry([1], 2, 3), "a": entry([2], 0, 2)}, b"xyz"))
    assert [(tensor.name, tensor.stop - tensor.start) for tensor in result.tensors] == [("a", 2), ("b", 1)]
    assert result.metadata == {}
