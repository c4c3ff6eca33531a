"""One file that runs without a registry: the same outputs, truthful names, nothing believed that is not checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file
from small import data_set
from torch import Tensor

import compatkit as ck
from compatkit.adapters.cutting.signals import signal
from compatkit.components.drafts import Draft
from compatkit.components.exports.document import Description, description_of, from_text, to_text
from compatkit.components.splitting import publish_split, split
from compatkit.errors import (
    EnvironmentFailure,
    FormatError,
    IntegrityError,
    UnknownName,
    UsageError,
)
from compatkit.foundation.codec import unstructure
from compatkit.registry.weights.header import read_header
from compatkit.registry.weights.tensorfile import deserialize, serialize

GRAY = {"in_chans": 1, "num_classes": 3}
FEW = {"layers": [1, 1, 1, 1], "num_classes": 3}
LABELS = ("0", "1", "2")
IMAGES = data_set("left", size=(16, 16), count=24).test
POLICIES = ("running", "batch", "reestimate", "mix:8")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def moved(module: torch.nn.Module, seed: int) -> None:
    """Give batch normalization statistics of its own, as training does."""
    draw = torch.Generator().manual_seed(seed)
    for name, value in module.named_buffers():
        if "running" in name:
            value.copy_(torch.rand(value.shape, generator=draw) + 0.5)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """Two networks of one kind, one of the same kind cut earlier, and two of timm's; only read."""
    made = ck.Registry.init(tmp_path_factory.mktemp("exported") / "parts")
    networks: dict[str, tuple[str, str, dict[str, Any]]] = {
        "a": ("resnet8_cifar", "layer2", GRAY),
        "b": ("resnet8_cifar", "layer2", GRAY),
        "early": ("resnet8_cifar", "layer1", GRAY),
        "one": ("resnet18", "layer2", FEW),
        "two": ("resnet18", "layer2", FEW),
    }
    for seed, (name, (model, point, kwargs)) in enumerate(networks.items()):
        size = (16, 16) if model == "resnet8_cifar" else (32, 32)
        parts = split(model, point, kwargs=kwargs, size=size, labels=LABELS, seed=seed)
        with torch.no_grad():
            for part in parts.values():
                moved(part.module, seed)
        fresh = {side: _proved_anew(part) for side, part in parts.items()}
        publish_split(made.store, fresh, f"nets/{name}")
    return made


def _proved_anew(part: Any) -> Any:
    contract = part.contract
    made = Draft.of(part.kind, part.blueprint, part.module, contract.structural, contract.data)
    return attrs.evolve(part, contract=made.contract)


def recombined(registry: ck.Registry, policy: str = "running", left: str = "a", right: str = "b") -> Any:
    return registry.recombine(
        f"nets/{left}.extractor",
        f"nets/{right}.head",
        bn_policy=policy,
        data=IMAGES if policy not in ("batch", "running") else None,
    )


def images(batch: int = 5, channels: int = 1, side: int = 16) -> Tensor:
    return signal((batch, channels, side, side))


def run(module: torch.nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return module(inputs)


def described(path: Path) -> Description:
    return description_of(read_header(path))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_what_comes_back_is_the_same_network(registry: ck.Registry, tmp_path: Path, policy: str) -> None:
    made, file = recombined(registry, policy), tmp_path / "ab.safetensors"
    written = registry.export(made, file)
    assert written.bytes == file.stat().st_size and written.description == described(file)
    again = ck.load_exported(file)
    assert not again.training and again.bn_policy == policy
    for batch in (2, 5):
        assert torch.equal(run(again, images(batch)), run(made, images(batch)))
    assert torch.equal(again.predict(IMAGES).probabilities, made.predict(IMAGES).probabilities)
    assert [label.name for label in again.labels] == list(LABELS) and again.data == made.data
    result = again.description
    assert result.kind == "recombination" and result.policy == policy and result.contract == again.contract
    assert [part.component for part in result.parts] == [source.digest for source in made.sources]
    if policy == "reestimate":
        assert result.training["statistics"]["data"]["digest"] == IMAGES.digest


def test_a_published_recombination_is_exported_by_its_reference(
    registry: ck.Registry, tmp_path: Path
) -> None:
    own = ck.Registry.open(shutil.copytree(registry.store.root, tmp_path / "own"))
    made = recombined(own, "batch")
    reference = own.publish(made, "pairs/ab")
    file = tmp_path / "ab.safetensors"
    own.export("pairs/ab", file)
    result = described(file)
    assert (result.reference, result.component) == (reference, own.store.resolve("pairs/ab").digest)
    assert torch.equal(run(ck.load_exported(file), images()), run(made, images()))
    first = file.read_bytes()
    own.export("pairs/ab", file)
    assert file.read_bytes() == first, "the same export has the same bytes"


@pytest.mark.parametrize("policy", POLICIES)
def test_halves_of_one_architecture_load_strictly_into_timm(
    registry: ck.Registry, tmp_path: Path, policy: str
) -> None:
    import timm

    made = registry.recombine(
        "nets/one.extractor",
        "nets/two.head",
        bn_policy=policy,
        data=data_set("left", channels=3, size=(32, 32), count=24).test
        if policy not in ("batch", "running")
        else None,
    )
    file = tmp_path / "swapped.safetensors"
    written = registry.export(made, file)
    assert written.description.names == "whole"
    whole = timm.create_model("resnet18", **FEW)
    whole.load_state_dict(load_file(file), strict=True)
    inputs = images(channels=3, side=32)
    assert torch.equal(run(whole.eval(), inputs), made.through(inputs).detach())
    if policy != "batch":
        assert torch.equal(run(whole, inputs), run(made, inputs))
    blueprint = written.description.whole
    assert blueprint is not None and (blueprint.model, dict(blueprint.kwargs)) == ("resnet18", FEW)


def test_names_of_the_parts_can_be_asked_for(registry: ck.Registry, tmp_path: Path) -> None:
    made, file = recombined(registry), tmp_path / "ab.safetensors"
    registry.export(made, file, names="parts")
    names = {tensor.name for tensor in read_header(file).tensors}
    assert names == set(made.state_dict()) and {name.partition(".")[0] for name in names} == {
        "extractor",
        "head",
    }
    assert torch.equal(run(ck.load_exported(file), images()), run(made, images()))


def test_parts_of_different_networks_keep_their_names(registry: ck.Registry, tmp_path: Path) -> None:
    made = registry.recombine(
        "nets/early.extractor",
        "nets/b.head",
        insert_adapters=True,
        data=data_set("left", size=(16, 16)).train,
    )
    file = tmp_path / "adapted.safetensors"
    with pytest.raises(UsageError, match=r"needs the two halves of one network.*adapters between"):
        registry.export(made, file, names="whole")
    assert not file.exists()
    registry.export(made, file)
    result = described(file)
    assert [part.prefix for part in result.parts] == ["extractor.", "adapters.0.", "adapters.1.", "head."]
    assert result.parts[2].names == ("bias", "weight") and result.parts[2].component is None
    assert result.training["adapters"][1]["training"]["method"] == "ridge"
    assert torch.equal(run(ck.load_exported(file), images()), run(made, images()))


@pytest.mark.parametrize("side", ["extractor", "head"])
def test_one_part_alone(registry: ck.Registry, tmp_path: Path, side: str) -> None:
    file = tmp_path / f"{side}.safetensors"
    registry.export(f"nets/a.{side}", file)
    part, again = registry.load(f"nets/a.{side}"), ck.load_exported(file)
    inputs = images() if side == "extractor" else run(registry.load("nets/a.extractor"), images())
    assert torch.equal(run(again, inputs), run(part, inputs))
    assert set(load_file(file)) == set(part.state_dict())
    assert again.description.kind == side
    with pytest.raises(UsageError, match="Predicting classes needs a complete network"):
        again.predict(IMAGES)
    with pytest.raises(UsageError, match="needs a complete network"):
        registry.export(f"nets/a.{side}", file, names="whole")


def test_an_adapter_alone(registry: ck.Registry, tmp_path: Path) -> None:
    own = ck.Registry.open(shutil.copytree(registry.store.root, tmp_path / "own"))
    made = own.recombine(
        "nets/early.extractor",
        "nets/b.head",
        insert_adapters=True,
        data=data_set("left", size=(16, 16)).train,
    )
    bridge = made.inserted[1]
    own.export(own.publish(bridge, "nets/bridge"), tmp_path / "bridge.safetensors")
    inputs = run(made.inserted[0].module, run(made.extractor, images()))
    assert torch.equal(
        run(ck.load_exported(tmp_path / "bridge.safetensors"), inputs), run(bridge.module, inputs)
    )


def test_it_runs_where_there_is_no_registry(registry: ck.Registry, tmp_path: Path) -> None:
    """In a process of its own, in an empty folder, with an empty cache."""
    made = recombined(registry, "batch")
    registry.export(made, tmp_path / "ab.safetensors")
    torch.save(run(made, images()), tmp_path / "expected.pt")
    script = (
        "import torch, compatkit\n"
        "from compatkit.adapters.cutting.signals import signal\n"
        "torch.set_num_threads(1)\n"
        "module = compatkit.load_exported('../ab.safetensors')\n"
        "expected = torch.load('../expected.pt', weights_only=True)\n"
        "with torch.no_grad():\n"
        "    assert torch.equal(module(signal((5, 1, 16, 16))), expected)\n"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "COMPATKIT_CACHE": str(empty / "cache"), "HOME": str(empty)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(empty.iterdir())


def test_the_file_has_the_rights_that_the_user_gives(registry: ck.Registry, tmp_path: Path) -> None:
    file = tmp_path / "part.safetensors"
    before = os.umask(0o027)
    try:
        registry.export("nets/a.head", file)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["part.safetensors"]


def test_a_module_that_was_changed_is_not_exported(registry: ck.Registry, tmp_path: Path) -> None:
    made = recombined(registry)
    with torch.no_grad():
        next(made.head.parameters()).mul_(2)
    with pytest.raises(IntegrityError, match="were changed after it was composed"):
        registry.export(made, tmp_path / "ab.safetensors")


def test_where_it_cannot_be_written(registry: ck.Registry, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory; name a file"):
        registry.export("nets/a.head", tmp_path)
    with pytest.raises(EnvironmentFailure):
        registry.export("nets/a.head", tmp_path / "nowhere" / "file.safetensors")
    with pytest.raises(UsageError, match="'names' must be one of"):
        registry.export("nets/a.head", tmp_path / "file.safetensors", names="best")


# Files that lie


@pytest.fixture(scope="module")
def honest(registry: ck.Registry, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("honest") / "ab.safetensors"
    registry.export(recombined(registry, "batch"), file)
    return file.read_bytes()


Change = Callable[[dict[str, Any]], None]


def rewritten(data: bytes, folder: Path, change: Change) -> Path:
    """Write the file with its description changed, whatever comes of it."""
    file = folder / "lie.safetensors"
    file.write_bytes(data)
    value = unstructure(described(file))
    change(value)
    file.write_bytes(serialize(deserialize(data), json.dumps(value)))
    return file


def at(*path: Any, to: Any) -> Change:
    def change(value: dict[str, Any]) -> None:
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    return change


def dropped(*path: Any) -> Change:
    def change(value: dict[str, Any]) -> None:
        for step in path[:-1]:
            value = value[step]
        del value[path[-1]]

    return change


LIES: dict[str, tuple[Change, type[Exception], str]] = {
    "schema": (at("schema", to=2), FormatError, "written by a newer compatkit"),
    "no schema": (dropped("schema"), FormatError, "schema: expected 1, got None"),
    "unknown field": (at("code", to="os.system"), FormatError, "unknown field 'code'"),
    "no parts": (
        at("parts", to=[]),
        FormatError,
        "expected each tensor in exactly one part|expected an extractor",
    ),
    "one part": (dropped("parts", 1), FormatError, "expected an extractor, the contract's adapters, a head"),
    "unknown kind": (at("kind", to="model"), FormatError, "expected one of 'extractor'"),
    "another kind": (at("kind", to="head"), FormatError, "expected one part"),
    "unknown policy": (at("blueprint", "kwargs", "normalisation", to="x"), FormatError, "a known policy"),
    "another policy": (
        at("blueprint", "kwargs", "normalisation", to="running"),
        IntegrityError,
        "other outputs on the probe",
    ),
    "a name twice": (
        lambda value: value["parts"][0]["names"].append(value["parts"][0]["names"][0]),
        FormatError,
        "expected each tensor in exactly one part",
    ),
    "a name of the other part": (
        lambda value: value["parts"][1]["names"].append(value["parts"][0]["names"].pop()),
        IntegrityError,
        "cannot be rebuilt: The weights are not those",
    ),
    "a name that is not there": (
        at("parts", 0, "names", 0, to="../../x"),
        FormatError,
        "expected each tensor in exactly one part",
    ),
    "another network": (
        at("parts", 0, "blueprint", "model", to="resnet20_cifar"),
        IntegrityError,
        "cannot be rebuilt",
    ),
    "no network": (at("parts", 0, "blueprint", "model", to="resnet9000"), UnknownName, "resnet9000"),
    "a file as a network": (at("parts", 0, "blueprint", "model", to="/etc/passwd"), UnknownName, "passwd"),
    "unknown builder": (
        at("parts", 0, "blueprint", "builder", to="os"),
        UnknownName,
        "No builder is called 'os'",
    ),
    "a cut that is none": (
        at("parts", 0, "blueprint", "split", to="nowhere"),
        UnknownName,
        "nowhere",
    ),
    "weights to fetch": (
        at("parts", 0, "blueprint", "kwargs", to={"pretrained": True}),
        IntegrityError,
        "cannot be rebuilt",
    ),
    "a checkpoint to read": (
        at("parts", 0, "blueprint", "kwargs", to={"checkpoint_path": "/etc/passwd"}),
        IntegrityError,
        "cannot be rebuilt",
    ),
    "another class": (
        lambda value: value["contract"]["data"]["labels"].append({"name": "x", "same_as": []}),
        IntegrityError,
        "4 classes are named, for 3 outputs",
    ),
    "a class twice": (
        lambda value: value["contract"]["data"]["labels"].append({"name": "0", "same_as": []}),
        FormatError,
        "duplicates number 0",
    ),
    "a class that drives a terminal": (
        at("contract", "data", "labels", 0, "name", to="\x1b[2J"),
        FormatError,
        "without control characters",
    ),
    "another probe": (
        at("contract", "statistical", "probe", "sketch", to=[0.5] * 16),
        IntegrityError,
        "other outputs on the probe",
    ),
    "a probe beyond all memory": (
        at("contract", "statistical", "probe", "shapes", to=[[2, 1, 2**20, 2**20]]),
        FormatError,
        "at most 268435456 values",
    ),
    "other images": (
        at("contract", "data", "channels", to="RGB"),
        IntegrityError,
        "expected 3 for RGB images",
    ),
    "another output": (
        at("contract", "structural", "outputs", 0, "shape", to=["N", 7]),
        IntegrityError,
        "is stated as N x 7|3 outputs|classes are named",
    ),
    "an adapter that is not there": (
        at(
            "contract",
            "adapters",
            to=[
                {
                    "builder": "adapter",
                    "library": "",
                    "model": "cast",
                    "kwargs": {"to": "float64"},
                    "split": "",
                    "side": "adapter",
                    "approach": "whole",
                    "traced_size": [16, 16],
                    "cut_outputs": 1,
                }
            ],
        ),
        FormatError,
        "the contract's adapters",
    ),
    "other tensors": (at("tensors", to="tensors:sha256:" + "0" * 64), IntegrityError, "was changed after"),
    "normalisation": (
        at("contract", "protocol", "normalisation", to="none"),
        IntegrityError,
        "Normalization 'none'",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused(honest: bytes, tmp_path: Path, lie: str) -> None:
    change, error, message = LIES[lie]
    file = rewritten(honest, tmp_path, change)
    with pytest.raises(error, match=message) as raised:
        ck.load_exported(file)
    assert str(file) in str(raised.value)


def test_changed_weights_are_refused(honest: bytes, tmp_path: Path) -> None:
    file = tmp_path / "ab.safetensors"
    for place in (len(honest) - 1, len(honest) // 2):
        data = bytearray(honest)
        data[place] ^= 1
        file.write_bytes(data)
        with pytest.raises(IntegrityError, match=f"{file}: expected the tensors"):
            ck.load_exported(file)


def test_other_files_are_named(honest: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file.safetensors"
    cases: list[tuple[bytes, str]] = [
        (honest[: len(honest) // 2], "file.safetensors: safetensors"),
        (honest[:100], "truncated"),
        (b"", "truncated or empty"),
        (b"PK\x03\x04" + bytes(100), "a zip archive, which is what torch.save writes"),
        (serialize({"w": torch.zeros(1)}), "a safetensors file, but not an export of compatkit"),
        (serialize({"w": torch.zeros(1)}, "[]"), "description: expected object"),
        (serialize({"w": torch.zeros(1)}, "{"), "not valid JSON"),
        (serialize({"w": torch.zeros(1)}, "[" * 5000), "nested deeper|not valid JSON"),
        (serialize({"w": torch.zeros(1)}, '{"schema":1,"schema":1}'), "appears twice"),
    ]
    for data, message in cases:
        file.write_bytes(data)
        with pytest.raises(FormatError, match=message) as raised:
            ck.load_exported(file)
        assert str(file) in str(raised.value)
    with pytest.raises(FormatError, match="got a folder"):
        ck.load_exported(tmp_path)
    with pytest.raises(EnvironmentFailure, match="no such file"):
        ck.load_exported(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="a named pipe"):
        ck.load_exported(tmp_path / "pipe")


def test_the_description_is_written_as_it_is_read(honest: bytes, tmp_path: Path) -> None:
    file = tmp_path / "ab.safetensors"
    file.write_bytes(honest)
    header = read_header(file)
    assert list(header.metadata) == ["compatkit"]
    text = header.metadata["compatkit"]
    assert to_text(from_text(text)) == text
    assert (
        "\n" not in text
        and json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text
    )
