"""A real package of somebody else: built as a wheel, installed elsewhere, found, listed and used offline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "third_party"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")

USE = """
import json, sys
from compatkit.plugins import RunPlugins, find, listing, use
from compatkit.metrics import make_metric

imported = "compatkit_example.feature_norm" in sys.modules
offer = find("regularizers", "feature_norm")
plugins = RunPlugins.create([use("feature_norm", weight=0.5, target=3.0)])
import torch
torch.set_num_threads(1)
class Step:
    features = torch.full((2, 4), 2.0, requires_grad=True)
loss = plugins.losses[0].call(Step())["deviation"]
loss.backward()
metric = make_metric("confidence")
logits = torch.tensor([[0.0, 0.0], [1e4, 0.0]])
result = metric.finalise(metric.update(metric.init(), logits, torch.tensor([0, 1])))
print(json.dumps({
    "imported": imported,
    "offer": [offer.key, offer.distribution, offer.version, offer.source],
    "manifest": plugins.manifest(),
    "loss": loss.item(),
    "confidence": result.to_json(),
    "listing": [line.to_json() for line in listing()],
}))
"""


def call(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which the example's wheel is installed; no index is asked."""
    folder = tmp_path_factory.mktemp("third_party")
    pytest.importorskip("setuptools", reason="building a wheel without a network needs setuptools here")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    call(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    call(*PIP, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def test_a_foreign_package_is_found_listed_and_used(site: Path, tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(USE)
    said = json.loads(call(sys.executable, "-W", "error", str(script), PYTHONPATH=str(site)))
    assert said["imported"] is False
    key, distribution, version, source = said["offer"]
    assert (key, distribution, version) == ("regularizers.feature_norm", "compatkit-example", "0.1.0")
    assert Path(source) == site / "compatkit_example" / "feature_norm.py"
    assert said["manifest"] == [
        {
            "name": "regularizers.feature_norm",
            "as": "feature_norm",
            "distribution": "compatkit-example",
            "version": "0.1.0",
            "settings": {"weight": 0.5, "start": 0, "stop": None, "target": 3.0},
        }
    ]
    assert said["loss"] == 1.0  # (mean square 4 - target 3) squared
    assert (said["confidence"]["value"], said["confidence"]["count"]) == (0.75, 2)
    lines = {f"{one['kind']}.{one['name']}": one for one in said["listing"]}
    for name in ("regularizers.feature_norm", "metrics.confidence"):
        assert (lines[name]["status"], lines[name]["distribution"]) == ("active", "compatkit-example"), lines[
            name
        ]
    assert lines["regularizers.feature_norm"]["hooks"] == ["compatkit_regularizers", "compatkit_losses"]


def test_the_package_checks_itself(site: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    said = call(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
        PYTHONPATH=str(site),
    )
    assert "2 passed" in said


def test_gone_with_its_package() -> None:
    script = "from compatkit.plugins import names; print('feature_norm' in names('regularizers'))"
    assert call(sys.executable, "-c", script).strip() == "False"
