"""Ways out of a registry: the refusal of torch.save, torch.export and ONNX."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set

import compatkit as ck
from compatkit.adapters.cutting.signals import signal
from compatkit.components.exports.document import from_text
from compatkit.components.splitting import publish_split, split
from compatkit.errors import PluginError, UnknownName, UsageError
from compatkit.plugins.files import offered

IMAGES = signal((5, 1, 16, 16))
POLICIES = ("running", "batch", "reestimate")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    made = ck.Registry.init(tmp_path_factory.mktemp("leaving") / "parts")
    for seed, name in enumerate("ab"):
        kwargs = {"in_chans": 1, "num_classes": 3}
        parts = split(
            "resnet8_cifar", "layer2", kwargs=kwargs, size=(16, 16), labels=("0", "1", "2"), seed=seed
        )
        publish_split(made.store, parts, f"nets/{name}")
    return made


def recombined(registry: ck.Registry, policy: str = "running") -> ck.Recombination:
    images = data_set("left", size=(16, 16)).test if policy == "reestimate" else None
    return registry.recombine("nets/a.extractor", "nets/b.head", bn_policy=policy, data=images)


def test_torch_save_is_refused_with_what_to_do_and_copies_are_not(
    registry: ck.Registry, tmp_path: Path
) -> None:
    registry.export(recombined(registry), tmp_path / "ab.safetensors")
    modules: dict[str, torch.nn.Module] = {
        "part": registry.load("nets/a.extractor"),
        "recombination": recombined(registry),
        "export": ck.load_exported(tmp_path / "ab.safetensors"),
    }
    for name, module in modules.items():
        with pytest.raises(UsageError, match=r"registry\.export.*load_exported.*state_dict") as error:
            torch.save(module, tmp_path / f"{name}.pt")
        assert error.value.code == "usage"
        with torch.no_grad():
            for twin in (copy.deepcopy(module), copy.copy(module)):
                assert torch.equal(twin(IMAGES), module(IMAGES))


def test_what_the_advice_names_works_in_a_fresh_process_without_a_registry(
    registry: ck.Registry, tmp_path: Path
) -> None:
    made = recombined(registry)
    registry.export(made, tmp_path / "ab.safetensors")
    registry.export("nets/a.extractor", tmp_path / "a.safetensors")
    torch.save(made.state_dict(), tmp_path / "weights.pt")
    with torch.no_grad():
        features = registry.load("nets/a.extractor")(IMAGES)
        torch.save({"logits": made(IMAGES), "features": features, "images": IMAGES}, tmp_path / "expected.pt")
    script = (
        "import torch, compatkit\n"
        "expected = torch.load('expected.pt', weights_only=True)\n"
        "whole, part = (compatkit.load_exported(f'{name}.safetensors') for name in ('ab', 'a'))\n"
        "with torch.no_grad():\n"
        "    assert torch.equal(part(expected['images']), expected['features'])\n"
        "    assert torch.equal(whole(expected['images']), expected['logits'])\n"
        "    whole.load_state_dict(torch.load('weights.pt', weights_only=True), strict=True)\n"
        "    assert torch.equal(whole(expected['images']), expected['logits'])\n"
    )
    registry.store.root.rename(tmp_path / "elsewhere")
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        (tmp_path / "elsewhere").rename(registry.store.root)
    assert done.returncode == 0, done.stderr


def test_torch_export_takes_a_recombination(registry: ck.Registry, tmp_path: Path) -> None:
    """Programs of all policies are saved, and loaded by a process that has torch alone."""
    others = signal((7, 1, 16, 16))
    logits: dict[str, torch.Tensor] = {}
    for policy in POLICIES:
        made = recombined(registry, policy)
        written = registry.export(made, tmp_path / f"{policy}.pt2", format="torch_export")
        assert written.bytes == written.path.stat().st_size
        with torch.no_grad():
            logits[policy] = made(others)
    torch.save({"images": others, "logits": logits}, tmp_path / "expected.pt")
    script = (
        "import sys, torch\n"
        "expected = torch.load('expected.pt', weights_only=True)\n"
        f"for policy in {POLICIES}:\n"
        "    found = torch.export.load(f'{policy}.pt2').module()(expected['images'])\n"
        "    torch.testing.assert_close(found, expected['logits'][policy])\n"
        "    print(policy)\n"
        "assert 'compatkit' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*POLICIES]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("policy", ["running", "batch", pytest.param("reestimate", marks=pytest.mark.slow)])
def test_onnx_gives_the_same_logits(registry: ck.Registry, policy: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator  # pyright: ignore[reportMissingImports]

    made: Any = recombined(registry, policy)
    path = tmp_path / "ab.onnx"
    registry.export(made, path, format="onnx")
    program = ReferenceEvaluator(str(path))
    others = signal((7, 1, 16, 16))
    (result,) = program.run(None, {program.input_names[0]: others.numpy()})
    (text,) = [entry.value for entry in program.proto_.metadata_props if entry.key == "compatkit"]
    assert from_text(text).contract.structural == made.contract.structural
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(result), made(others), rtol=1e-4, atol=1e-4)


MINE = """
from compatkit import hookimpl
compatkit_api = 1

@hookimpl
def compatkit_exporters(register):
    register("mine", export)

def export(file, module, inputs, description, fault="", times=1):
    assert not module.training and "written" not in [one.name for one in file.parent.iterdir()]
    if fault == "nothing":
        return
    if fault.startswith("folder"):
        (file / "inner").mkdir(parents=True)
        (file / "inner" / "description").write_text(description)
        (file / "more").write_text("12345")
        if fault == "folder":
            return
        raise RuntimeError(fault)
    file.write_text(description * times)
    if fault:
        raise RuntimeError(fault)
"""


def test_an_exporter_of_a_file_writes_whole_files_or_none(registry: ck.Registry, tmp_path: Path) -> None:
    (tmp_path / "my_exporter.py").write_text(MINE)
    target = tmp_path / "written"
    with offered([tmp_path / "my_exporter.py"]):
        for part in ("nets/a.extractor", "nets/a.head"):
            written = registry.export(part, target, format="mine", settings={"times": 2})
            text = target.read_text()
            assert text[: len(text) // 2] * 2 == text and written.bytes == len(text)
            assert from_text(text[: len(text) // 2]) == written.description
        refused: dict[str, tuple[type[Exception], dict[str, Any]]] = {
            "no such exporter": (UnknownName, {"format": "yours"}),
            "fails": (PluginError, {"format": "mine", "settings": {"fault": "halfway"}}),
            "writes nothing": (PluginError, {"format": "mine", "settings": {"fault": "nothing"}}),
            "writes a folder": (UsageError, {"format": "mine", "settings": {"fault": "folder"}}),
            "unknown setting": (PluginError, {"format": "mine", "settings": {"tmies": 2}}),
            "names": (UsageError, {"format": "mine", "names": "whole"}),
            "settings of safetensors": (UsageError, {"settings": {"times": 2}}),
        }
        for what, (error, settings) in refused.items():
            with pytest.raises(error):
                registry.export("nets/a.head", target, **settings)
            assert target.read_text() == text, what
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
            "my_exporter.py",
            "written",
        ]


def test_an_exporter_of_a_folder_writes_new_whole_folders_or_none(
    registry: ck.Registry, tmp_path: Path
) -> None:
    (tmp_path / "my_folders.py").write_text(MINE)
    target, taken = tmp_path / "written", tmp_path / "taken"
    taken.write_text("mine")
    settings = {"fault": "folder"}
    with offered([tmp_path / "my_folders.py"]):
        with pytest.raises(PluginError):
            registry.export("nets/a.head", target, format="mine", settings={"fault": "folder, halfway"})
        assert not target.exists()
        written = registry.export("nets/a.head", target, format="mine", settings=settings)
        text = (target / "inner" / "description").read_text()
        assert from_text(text) == written.description and written.bytes == len(text) + 5
        for present in (target, taken):
            with pytest.raises(UsageError):
                registry.export("nets/a.head", present, format="mine", settings=settings)
    assert taken.read_text() == "mine" and (target / "more").read_text() == "12345"
    assert not list(tmp_path.glob(".export-*"))
