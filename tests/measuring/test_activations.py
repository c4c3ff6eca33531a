"""Activations: what layers give as arrays in memory or in files, which images they belong to, every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import compatkit as ck
from compatkit.errors import DataError, FormatError, UnknownName, UsageError


def network(seed: int = 0) -> nn.Sequential:
    """Return a network with an activation that overwrites what the layer before it gave."""
    torch.manual_seed(seed)
    made = nn.Sequential()
    made.add_module("conv", nn.Conv2d(3, 4, 3, padding=1))
    made.add_module("act", nn.ReLU(inplace=True))
    made.add_module("flat", nn.Flatten())
    made.add_module("fc", nn.Linear(4 * 6 * 6, 5))
    return made


IMAGES = torch.rand(23, 3, 6, 6, generator=torch.Generator().manual_seed(3))
DATA = IMAGES, torch.zeros(23, dtype=torch.int64)


@pytest.mark.parametrize("how", ["all", "pooled", "positions"])
@pytest.mark.parametrize("expected", [False, True])
def test_rows_are_what_the_layers_gave(how: str, expected: bool, tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        before = model.get_submodule("conv")(IMAGES)
        after = before.relu()
        logits = model.get_submodule("fc")(after.flatten(1))
    shaped: dict[str, Callable[[Any], Any]] = {
        "all": lambda entry: entry.flatten(1),
        "pooled": lambda item: item.mean((2, 3)),
        "positions": lambda tensor: tensor.permute(0, 2, 3, 1).flatten(0, 2),
    }
    folder = tmp_path / "rows" if expected else None
    result = ck.activations(model, DATA, layers=["[ca]*", "fc"], flatten=how, folder=folder, batch_size=5)
    assert list(result) == ["conv", "act", "fc"]
    np.testing.assert_allclose(result["conv"], shaped[how](before), atol=1e-6)
    np.testing.assert_allclose(result["act"], shaped[how](after), atol=1e-6)
    np.testing.assert_allclose(result["fc"], logits, atol=1e-6)
    assert result.positions.tolist() == list(range(23)) and result.settings["flatten"] == how
    assert isinstance(result["fc"], np.memmap) == expected


def test_files_are_opened_again_and_never_changed(tmp_path: Path) -> None:
    result = ck.activations(network(), DATA, layers=["conv", "fc"], folder=tmp_path / "rows", seed=1)
    again = ck.Activations.open(tmp_path / "rows")
    assert again.order == result.order and dict(again.settings) == dict(result.settings)
    for name, rows in result.items():
        np.testing.assert_array_equal(again[name], rows)
    before = [path.read_bytes() for path in sorted((tmp_path / "rows").iterdir())]
    ck.similarity(again, again, ["cka", "procrustes", "svcca", "matched_correlation"])
    assert [path.read_bytes() for path in sorted((tmp_path / "rows").iterdir())] == before


def test_the_order_of_the_images_is_told() -> None:
    plain, mixed = (ck.activations(network(), DATA, layers=["fc"], seed=seed) for seed in (None, 4))
    assert sorted(mixed.positions.tolist()) == plain.positions.tolist()
    assert mixed.order != plain.order == ck.activations(network(1), DATA, layers=["act"], batch_size=7).order
    np.testing.assert_allclose(mixed["fc"], plain["fc"][mixed.positions], atol=1e-6)


@pytest.mark.parametrize("how", ["all", "positions"])
def test_shuffled_rows_keep_images_together(how: str) -> None:
    plain = ck.activations(network(), DATA, layers=["conv"], flatten=how)
    mixed = plain.shuffled(seed=2)
    order = np.random.default_rng(2).permutation(23)
    images = [item["conv"].reshape(23, -1) for item in (plain, mixed)]
    np.testing.assert_array_equal(images[1], images[0][order])
    assert mixed.order == plain.order and mixed.settings["shuffled"] == 2


def test_an_interrupted_recording_is_not_opened(tmp_path: Path) -> None:
    model, where = network(), tmp_path / "rows"

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ck.activations(model, DATA, layers=["fc"], folder=where, batch_size=5, progress=stop)
    assert not where.exists(), "nothing is left half written"
    ck.activations(model, DATA, layers=["fc"], folder=where)
    (where / "activations.json").unlink()  # written last: a killed recording has none
    with pytest.raises(DataError) as error:
        ck.Activations.open(where)
    assert error.value.subject == str(where)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no JSON": lambda at: (at / "activations.json").write_text("{"),
    "another version": lambda at: _edit(at, format=9),
    "no layers": lambda at: _edit(at, layers=[1]),
    "a file is missing": lambda at: (at / "0000.npy").unlink(),
    "a file is cut": lambda at: (at / "0000.npy").write_bytes((at / "0000.npy").read_bytes()[:200]),
    "other rows": lambda at: np.save(at / "0000.npy", np.zeros((2, 2))),
    "objects": lambda at: np.save(at / "0000.npy", np.array([{}], dtype=object), allow_pickle=True),
}


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "activations.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(damage: str, tmp_path: Path) -> None:
    where = tmp_path / "rows"
    ck.activations(network(), DATA, layers=["fc"], folder=where)
    DAMAGES[damage](where)
    with pytest.raises(FormatError) as error:
        ck.Activations.open(where)
    assert error.value.subject == str(where)


def test_refusals(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(UnknownName) as unknown:
        ck.activations(model, DATA, layers=["fcc"])
    assert unknown.value.subject == "fcc"
    with pytest.raises(UnknownName) as missing:
        ck.activations(model, DATA, layers=["fc"])["conv"]
    assert missing.value.subject == "conv"
    with pytest.raises(UsageError) as how:
        ck.activations(model, DATA, layers=["fc"], flatten="mean")
    assert how.value.subject == "flatten"
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(DataError) as full:
        ck.activations(model, DATA, layers=["fc"], folder=tmp_path)
    assert full.value.subject == str(tmp_path)
    with torch.no_grad():
        model.get_submodule("fc").weight[0, 0] = torch.nan  # type: ignore[index]
    with pytest.raises(DataError) as nan:
        ck.activations(model, DATA, layers=["fc"])
    assert nan.value.subject == "fc"
