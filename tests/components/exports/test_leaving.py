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
from compatkit.components.splitting import publish_split, split
from compatkit.errors import UsageError

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
    others, batch = signal((7, 1, 16, 16)), torch.export.Dim("batch")
    logits: dict[str, torch.Tensor] = {}
    for policy in POLICIES:
        made = recombined(registry, policy)
        program = torch.export.export(made, (IMAGES,), dynamic_shapes=({0: batch},))
        torch.export.save(program, tmp_path / f"{policy}.pt2")
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
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"]}
    torch.onnx.export(
        made, (IMAGES,), path, dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), **names
    )
    others = signal((7, 1, 16, 16))
    (found,) = ReferenceEvaluator(str(path)).run(None, {"images": others.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), made(others), rtol=1e-4, atol=1e-4)
