"""Archives of torch.export give their weights; nothing in them is unpickled, and damaged ones are one error."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import edited
from savedfiles import touching

from compatkit.components.checkpoints.program_archive import program_tensors
from compatkit.components.checkpoints.reading import read_checkpoint
from compatkit.components.checkpoints.unpickle_subprocess import check_archive
from compatkit.errors import CompatkitError, FormatError, UnsafeCheckpoint

WEIGHTS = {
    "fc.weight": torch.arange(6.0).reshape(2, 3),
    "fc.bias": torch.tensor([1.5, -2.0]).half(),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False]),
}
NUMBERS = {torch.float32: 7, torch.float16: 6, torch.int64: 5, torch.bool: 12}
TABLE = "net/data/weights/model_weights_config.json"
Change = Callable[[dict[str, Any]], Any]


def numbers(values: Any) -> list[dict[str, int]]:
    return [{"as_int": value} for value in values]


def archive(change: Change = lambda table: None, **more: bytes) -> bytes:
    """Return an archive as torch.export lays it out, made by hand, with a changed table of weights."""
    table, entries = {"config": {}}, {"net/data/weights/weight_0": b""}
    for at, (name, value) in enumerate(WEIGHTS.items()):
        entries[f"net/data/weights/weight_{at}"] = bytes(value.contiguous().view(-1).numpy().tobytes())
        table["config"][name] = {
            "path_name": f"weight_{at}",
            "is_param": True,
            "use_pickle": False,
            "tensor_meta": {
                "dtype": NUMBERS[value.dtype],
                "sizes": numbers(value.shape),
                "strides": numbers(value.stride()),
                "storage_offset": {"as_int": 0},
                "layout": 7,
            },
        }
    change(table)
    entries |= {TABLE: json.dumps(table).encode(), "net/byteorder": b"little", **more}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in entries.items():
            made.writestr(name, data)
    return out.getvalue()


def meta(table: dict[str, Any]) -> dict[str, Any]:
    return table["config"]["fc.weight"]["tensor_meta"]


@pytest.mark.filterwarnings("ignore:No complete tensor found:UserWarning")  # torch, of a view
def test_what_torch_exports_is_read_bit_for_bit(tmp_path: Path) -> None:
    """With a tied weight, one that is a transposed view, and a buffer."""
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
    ).eval()
    network[2].weight = network[0].weight
    network[0].bias = torch.nn.Parameter(torch.randn(4, 4).t()[1])
    program = torch.export.export(network, (torch.randn(2, 4),))
    torch.export.save(program, tmp_path / "net.pt2", extra_files={"notes.txt": "hello"})
    (tmp_path / "net.pt2").rename(tmp_path / "net.bin")  # the format is in the bytes
    result = read_checkpoint(tmp_path / "net.bin")
    expected = network.state_dict()
    assert result.format == "program" and result.tensors.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(result.tensors[name], value) and result.tensors[name].dtype == value.dtype, name


def test_the_layout_made_by_hand_is_that_of_torch(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(archive())
    result = read_checkpoint(tmp_path / "net.pt2")
    assert result.format == "program"
    assert all(torch.equal(result.tensors[name], value) for name, value in WEIGHTS.items())


DAMAGED: dict[str, Change] = {
    "no table": lambda table: table.pop("config"),
    "a list": lambda table: table.update(config=[1]),
    "no file": lambda table: table["config"]["fc.weight"].update(path_name="weight_9"),
    "a path": lambda table: table["config"]["fc.weight"].update(path_name="../../../etc/passwd"),
    "a number": lambda table: table["config"].update(steps=3),
    "an unknown dtype": lambda table: meta(table).update(dtype=99),
    "sparse": lambda table: meta(table).update(layout=1),
    "beyond its bytes": lambda table: meta(table).update(sizes=numbers((200, 3))),
    "an offset beyond": lambda table: meta(table).update(storage_offset={"as_int": 6}),
    "a negative offset": lambda table: meta(table).update(storage_offset={"as_int": -1}),
    "a negative size": lambda table: meta(table).update(sizes=numbers((-2, 3))),
    "a negative stride": lambda table: meta(table).update(strides=numbers((-3, 1))),
    "more sizes": lambda table: meta(table).update(sizes=numbers((2, 3, 1))),
    "huge": lambda table: meta(table).update(sizes=numbers((2**70, 3))),
    "symbolic": lambda table: meta(table).update(sizes=[{"as_expr": "__import__('os')"}] * 2),
    "bytes that are no whole numbers": lambda table: table["config"]["fc.weight"].update(
        path_name="weight_3"
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_table_is_one_error(case: str) -> None:
    with pytest.raises(FormatError) as error:
        program_tensors(io.BytesIO(archive(DAMAGED[case])))
    assert error.value.code == "format"


@pytest.mark.parametrize(
    "data",
    [
        archive(**{"net/data/weights/other_weights_config.json": b"{}"}),
        archive(**{TABLE: b"{"}),
        archive(**{TABLE: b"[" * 10_000}),
        archive(**{"net/byteorder": b"big"}),
    ],
    ids=["two tables", "no JSON", "deep", "big-endian"],
)
def test_another_archive_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        program_tensors(io.BytesIO(data))


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(archive()[:-30])
    with pytest.raises(FormatError) as error:
        read_checkpoint(tmp_path / "net.pt2")
    assert "net.pt2" in str(error.value)


def test_pickled_weights_are_refused_and_not_opened(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def pickled(table: dict[str, Any]) -> None:
        table["config"]["fc.weight"]["use_pickle"] = True

    with pytest.raises(UnsafeCheckpoint):
        program_tensors(io.BytesIO(archive(pickled, **{"net/data/weights/weight_0": touching(mark)()})))
    assert not mark.exists()


@pytest.mark.nightly
def test_a_weight_that_repeats_itself_without_end_is_refused(tmp_path: Path) -> None:
    def repeated(table: dict[str, Any]) -> None:
        meta(table).update(sizes=numbers((10**9, 10**5)), strides=numbers((0, 0)))

    (tmp_path / "net.pt2").write_bytes(archive(repeated))
    with pytest.raises(UnsafeCheckpoint):
        read_checkpoint(tmp_path / "net.pt2")


@pytest.mark.parametrize(
    "count", [300, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(0)])]
)
def test_damaged_archives_are_errors_of_ours(count: int) -> None:
    valid, accepted = archive(), 0
    for number in range(count):
        data = edited(valid, random.Random(number), [valid])
        try:
            check_archive(io.BytesIO(data), len(data))
            program_tensors(io.BytesIO(data))
            accepted += 1
        except CompatkitError as error:
            assert 20 < len(str(error)) < 2000, error
    assert accepted < count
