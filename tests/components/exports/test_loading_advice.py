"""What ``export`` and ``inspect`` say about loading a file without compatkit is run, in a process without compatkit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

import compatkit as ck
from compatkit.adapters.cutting.signals import signal
from compatkit.cli.inspect import network_call
from compatkit.components.exports.document import description_of
from compatkit.components.exports.writing import prefixes
from compatkit.components.splitting import publish_split, split
from compatkit.errors import UsageError
from compatkit.registry.weights.header import read_header

FEW = {"layers": [1, 1, 1, 1], "num_classes": 3}
THREE = {"num_classes": 3}
LAB = """
from timm.models import register_model
from torch import nn

@register_model
def lab_of_tests(pretrained=False, num_classes=4, **kwargs):
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)
    return nn.Sequential(*layers)
"""
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('compatkit', 'compatkit_plugins')))\n"
"""An import of either fails."""


def exported(
    tmp_path: Path, model: str, cut: str, kwargs: dict[str, Any], **settings: Any
) -> tuple[Path, Any]:
    """Export two halves that were published apart, and return the file with the recombination."""
    registry = ck.Registry.init(tmp_path / "parts")
    for seed, name in enumerate(("a", "b")):
        publish_split(registry.store, split(model, cut, kwargs=kwargs, seed=seed, **settings), f"nets/{name}")
    made = registry.recombine("nets/a.extractor", "nets/b.head", bn_policy="running")
    registry.export(made, tmp_path / "ab.safetensors")
    return tmp_path / "ab.safetensors", made


def call_of(file: Path) -> str:
    whole = description_of(read_header(file)).whole
    assert whole is not None
    return network_call(whole)


def executed(call: str, file: Path, made: Any, size: int, *, alone: bool) -> subprocess.CompletedProcess[str]:
    """Run the advice as a reader would: import what it names, load strictly, compare the outputs."""
    images = signal((2, 3, size, size))
    with torch.no_grad():
        torch.save({"images": images, "logits": made(images)}, file.with_name("expected.pt"))
    expression, _, after = call.partition(" after ")
    script = (
        f"{WITHOUT if alone else ''}import torch\nfrom safetensors.torch import load_file\n"
        f"{after}\nimport {expression.partition('(')[0].rpartition('.')[0]}\n"
        f"torch.set_num_threads(1)\nnetwork = {expression}\n"
        f"network.load_state_dict(load_file({str(file)!r}), strict=True)\n"
        "expected = torch.load('expected.pt', weights_only=True)\n"
        "with torch.no_grad():\n"
        "    assert torch.equal(network.eval()(expected['images']), expected['logits'])\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=file.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("model", "cut", "kwargs", "settings", "start"),
    [
        ("resnet18", "layer2", FEW, {}, "timm.create_model('resnet18', "),
        ("test_vit", "blocks.2", THREE, {}, "timm.create_model('test_vit', "),
        ("shufflenet_v2_x0_5", "stage2", THREE, {"builder": "torchvision"}, "torchvision.models.get_model("),
        (
            "squeezenet1_1",
            "features.3",
            {"num_classes": 3, "in_chans": 3},
            {"builder": "torchvision"},
            "torchvision.models.get_model('squeezenet1_1', num_classes=3)",
        ),
    ],
    ids=str,
)
def test_a_library_loads_the_file_alone(
    tmp_path: Path, model: str, cut: str, kwargs: dict[str, Any], settings: dict[str, Any], start: str
) -> None:
    size = 160 if model == "test_vit" else 32
    file, made = exported(tmp_path, model, cut, kwargs, size=(size, size), **settings)
    call = call_of(file)
    assert call.startswith(start)
    result = executed(call, file, made, size, alone=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("model", "cut", "settings", "factory"),
    [
        ("resnet8_cifar", "layer2", {}, "compatkit_plugins.networks.build("),
        (
            "mnasnet0_5",
            "layers.8",
            {"builder": "torchvision"},
            "compatkit_plugins.networks.torchvision.build(",
        ),
        pytest.param(
            *(
                "googlenet",
                "maxpool2",
                {"builder": "torchvision"},
                "compatkit_plugins.networks.torchvision.build(",
            ),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_network_that_its_library_lacks_or_builds_otherwise_needs_compatkit(
    tmp_path: Path, model: str, cut: str, settings: dict[str, Any], factory: str
) -> None:
    file, made = exported(tmp_path, model, cut, THREE, size=(32, 32), **settings)
    call = call_of(file)
    assert call.startswith(factory)
    assert executed(call, file, made, 32, alone=False).returncode == 0
    assert "ModuleNotFoundError" in executed(call, file, made, 32, alone=True).stderr


def test_a_network_that_a_package_registers_with_timm_needs_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "lab_of_tests_package.py").write_text(LAB)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    __import__("lab_of_tests_package")
    file, made = exported(tmp_path, "lab_of_tests", "1", THREE, size=(8, 8), builder="timm")
    call = call_of(file)
    assert call == "timm.create_model('lab_of_tests', num_classes=3) after import lab_of_tests_package"
    assert executed(call, file, made, 8, alone=True).returncode == 0
    forgotten = call.partition(" after ")[0]
    assert "Unknown model" in executed(forgotten, file, made, 8, alone=True).stderr
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(site)])
    assert call_of(file) == "", "no other process can import it"


def test_halves_that_differ_in_a_layer_without_weights_are_no_whole_network(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    plain = {"num_classes": 3, "layers": [1, 1, 1, 1]}
    smooth = {**plain, "act_layer": "silu"}
    for name, kwargs in (("plain", plain), ("smooth", smooth)):
        publish_split(
            registry.store, split("resnet18", "layer2", kwargs=kwargs, size=(32, 32)), f"nets/{name}"
        )
    made = registry.recombine("nets/smooth.extractor", "nets/plain.head", bn_policy="running")
    file = tmp_path / "mixed.safetensors"
    with pytest.raises(UsageError, match="other outputs"):
        registry.export(made, file, names="whole")
    assert registry.export(made, file).description.names == "parts"
    images = signal((2, 3, 32, 32))
    with torch.no_grad():
        assert torch.equal(ck.load_exported(file)(images), made(images))


def test_a_layer_lost_between_two_cuts_is_found(tmp_path: Path) -> None:
    early, late = (split("resnet18", cut, kwargs=FEW, size=(32, 32), seed=0) for cut in ("bn1", "act1"))
    halves = [(part.blueprint, part.module) for part in (early["extractor"], late["head"])]
    images = signal((2, 3, 32, 32))
    with torch.no_grad():
        for parameter in [*halves[1][1].parameters(), *early["head"].module.parameters()]:
            parameter.uniform_(0.1, 0.2)  # branches that start at zero would hide what is lost
    assert prefixes(halves, "auto", images)[1] == "parts"
    halves[1] = (early["head"].blueprint, early["head"].module)
    assert prefixes(halves, "auto", images) == (["", ""], "whole")


def test_an_unknown_builder_gives_no_call(tmp_path: Path) -> None:
    blueprint = split("resnet18", "layer2", kwargs=FEW, size=(32, 32))["head"].blueprint
    assert network_call(attrs.evolve(blueprint, builder="nowhere")) == ""
    assert network_call(attrs.evolve(blueprint, model="nonesuch")) == ""
