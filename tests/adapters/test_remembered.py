"""Cuts that are remembered, in the process and in the cache folder, give the very parts that tracing gives."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from adapters.test_families import FAMILIES
from torch import nn

from compatkit.adapters.blueprints import build, build_pair, plan
from compatkit.adapters.builders import create
from compatkit.adapters.cutting import remembered
from compatkit.adapters.cutting.cut import sides_of
from compatkit.adapters.cutting.planning import working_cut
from compatkit.adapters.cutting.proof import unchanged
from compatkit.adapters.cutting.remembered import remembered_sides
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.initialization import seeded
from compatkit.contracts.contract import Blueprint


@pytest.fixture(autouse=True)
def forgotten(no_outside_influence: None) -> None:
    remembered.forget()
    (Path(os.environ["XDG_CACHE_HOME"]) / "compatkit").mkdir(parents=True)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Split points of the cuts that were made, not remembered."""
    made: list[str] = []

    def counting(whole: nn.Module, split: str, approach: str, image: tuple[int, ...]) -> Any:
        made.append(split)
        return sides_of(whole, split, approach, image)

    monkeypatch.setattr(remembered, "sides_of", counting)
    return made


def stored() -> list[Path]:
    return sorted((Path(os.environ["XDG_CACHE_HOME"]) / "compatkit" / "cuts").glob("*"))


def outputs(whole: nn.Module, parts: tuple[nn.Module, nn.Module], images: torch.Tensor) -> list[Any]:
    """Return what crosses and what comes out, in eval and in train mode, with all state afterwards."""
    found: list[Any] = []
    with unchanged(whole), torch.no_grad():
        for training in (False, True):
            for part in parts:
                part.train(training)
            torch.manual_seed(5)
            features = parts[0](images)
            logits = parts[1](features)
            found += [*([features] if isinstance(features, torch.Tensor) else features), logits]
            found += [value.clone() for part in parts for value in part.state_dict().values()]
    return found


ORDINARY = (
    "resnet18",
    "swin_tiny_patch4_window7_224",
    "crossvit_9_240",
    "test_vit",
    "twins_svt_small",
    "pit_s_224",
)
"""One family of each way to cut, and number of tensors that cross; the others are slow tests."""


@pytest.mark.parametrize(
    ("model", "side", "kwargs", "split", "way", "tensors", "other"),
    [
        pytest.param(
            *values, id=f"{values[0]}-{values[3]}", marks=() if values[0] in ORDINARY else pytest.mark.slow
        )
        for values in (getattr(one, "values", one) for one in FAMILIES)
    ],
)
def test_a_remembered_cut_gives_bitwise_the_parts_that_were_traced(
    model, side, kwargs, split, way, tensors, other
):
    kwargs = {**kwargs, "num_classes": 10}
    with seeded(1):
        first = create("timm", model, kwargs)
    with seeded(2):
        second = create("timm", model, kwargs)
    asked = Blueprint("timm", "timm", model, kwargs, split, "extractor", "", (side, side))
    blueprint = working_cut(first, asked)[0]
    image = (3, side, side)
    fresh = sides_of(second, split, blueprint.approach, image)
    expected = outputs(second, (fresh["extractor"](second), fresh["head"](second)), signal((2, *image)))
    for again in (False, True):
        if again:
            remembered.forget()  # what was stored is read
        sides = remembered_sides(second, blueprint)
        parts = sides["extractor"](second), sides["head"](second)
        came = outputs(second, parts, signal((2, *image)))
        assert len(came) == len(expected)
        assert all(torch.equal(*pair) for pair in zip(came, expected, strict=True))
        for part, side_of in zip(parts, ("extractor", "head"), strict=True):
            assert part.state_dict().keys() == fresh[side_of](second).state_dict().keys()


def test_a_part_is_rebuilt_without_another_trace(traces):
    planned = plan("resnet20_cifar", "layer2")
    assert stored() == []
    _, *parts = build_pair(planned.extractor, planned.head, seed=0)
    for blueprint, part in zip((planned.extractor, planned.head), parts, strict=True):
        build(blueprint, state=part.state_dict())
    remembered.forget()
    build(planned.extractor, seed=0)
    assert traces == ["layer2"]
    assert len(stored()) == 1


def test_another_class_count_image_size_or_split_is_another_cut(traces):
    planned = plan("resnet20_cifar", "layer2")
    for changed in (
        attrs.evolve(planned.extractor, kwargs={"num_classes": 3}),
        attrs.evolve(planned.extractor, split="layer1"),
        attrs.evolve(planned.extractor, traced_size=(64, 64)),
    ):
        build(changed, seed=0)
    assert len(traces) == 3


def rewritten(file: Path, change) -> None:
    """Store a changed body under a digest that is right for it."""
    body = json.loads(file.read_bytes().partition(b"\n")[2])
    changed = json.dumps(change(body)).encode()
    file.write_bytes(hashlib.sha256(changed).hexdigest().encode() + b"\n" + changed)


def called(op: str, target: str):
    """Put another node into the extractor's first graph, behind its input."""

    def change(body):
        nodes = body[1]["extractor"]["graphs"][1]
        entry = {"tuple": [{"node": nodes[0][0]}]}
        nodes.insert(1, ["made", op, target, entry, {"dict": {}}])
        return body

    return change


def renamed(body):
    body[0] += " "
    return body


def elsewhere(body):
    body[1]["head"]["modules"].append("layer9")
    return body


def keyword(body):
    body[1]["extractor"]["graphs"][0][1][4] = {"dict": {"x=print()) or (y": 1}}
    return body


@pytest.mark.parametrize(
    "change",
    [
        renamed,
        elsewhere,
        keyword,
        called("call_function", "eval"),
        called("call_function", "shape"),
        called("call_method", "tofile"),
        called("call_method", "x.__class__"),
        called("call_module", "layer1'); print('"),
        called("get_attr", "__class__"),
        called("placeholder", "x=print()"),
        lambda body: [body[0], {"extractor": body[1]["extractor"]}],
        lambda body: [],
    ],
)
def test_a_file_that_was_made_for_something_else_is_ignored_and_written_anew(traces, change):
    planned = plan("resnet20_cifar", "layer2")
    build(planned.extractor, seed=0)
    (file,) = stored()
    before = file.read_bytes()
    rewritten(file, change)
    remembered.forget()
    traces.clear()
    build(planned.extractor, seed=0)
    assert traces == ["layer2"]
    assert file.read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff" * 100, None])
def test_a_damaged_file_is_ignored_and_written_anew(traces, damage):
    planned = plan("resnet20_cifar", "layer2")
    build(planned.extractor, seed=0)
    (file,) = stored()
    before = file.read_bytes()
    file.write_bytes(before[:-20] if damage is None else damage)
    remembered.forget()
    traces.clear()
    build(planned.extractor, seed=0)
    assert traces == ["layer2"]
    assert file.read_bytes() == before
    assert stored() == [file]


def test_the_folder_keeps_the_newest_cuts(traces, monkeypatch):
    monkeypatch.setattr(remembered, "STORED", 2)
    planned = plan("resnet20_cifar", "layer2")
    for classes in (3, 4, 5):
        build(attrs.evolve(planned.extractor, kwargs={"num_classes": classes}), seed=0)
        for older in stored():
            os.utime(older, ns=(older.stat().st_atime_ns, older.stat().st_mtime_ns - 10**9))
    counts = [
        json.loads(json.loads(one.read_bytes().partition(b"\n")[2])[0])[3][2]["num_classes"]
        for one in stored()
    ]
    assert sorted(counts) == [4, 5]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.timeout(60)
def test_a_pipe_or_link_in_place_of_a_file_is_not_read(traces, tmp_path):
    planned = plan("resnet20_cifar", "layer2")
    build(planned.extractor, seed=0)
    (file,) = stored()
    whole = tmp_path / "elsewhere"
    whole.write_bytes(file.read_bytes())
    for replace in (os.mkfifo, lambda path: path.symlink_to(whole)):
        file.unlink()
        replace(file)
        remembered.forget()
        traces.clear()
        build(planned.extractor, seed=0)
        assert traces == ["layer2"]
        assert file.is_file() and not file.is_symlink()


def test_parts_are_built_where_nothing_can_be_stored(traces, tmp_path, monkeypatch):
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    monkeypatch.setenv("COMPATKIT_CACHE", str(occupied))
    planned = plan("resnet20_cifar", "layer2")
    build(planned.head, seed=0)
    assert traces == ["layer2"]


def test_nothing_is_left_behind_where_no_registry_made_a_cache_folder(traces, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "none"))
    planned = plan("resnet20_cifar", "layer2")
    build(planned.head, seed=0)
    assert traces == ["layer2"]
    assert not (tmp_path / "none").exists()


def test_networks_of_plugins_are_cut_each_time(traces, awkward):
    planned = plan("tiny", "first", builder=awkward, size=(16, 16))
    for _ in range(2):
        build(planned.extractor, seed=0)
    assert traces == ["first", "first"]
    assert stored() == []


def test_settings_that_traced_code_reads_are_part_of_what_is_remembered(traces):
    planned = plan("vit_tiny_patch16_224", "blocks.1.attn.qkv", size=(32, 32), kwargs={"depth": 2})
    build(planned.extractor, seed=0)
    traces.clear()
    whole = create("timm", "vit_tiny_patch16_224", planned.extractor.kwargs)
    remembered_sides(whole, planned.extractor)
    assert traces == []
    attention: Any = whole.get_submodule("blocks.1.attn")
    attention.fused_attn = not attention.fused_attn
    remembered_sides(whole, planned.extractor)
    assert traces == ["blocks.1.attn.qkv"]
