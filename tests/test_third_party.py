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
    for name in ("regularizers.feature_norm", "metrics.confidence", "builders.strips"):
        assert (lines[name]["status"], lines[name]["distribution"]) == ("active", "compatkit-example"), lines[
            name
        ]
    assert lines["regularizers.feature_norm"]["hooks"] == ["compatkit_regularizers", "compatkit_losses"]
    assert lines["builders.strips"]["models"] == ["strips_small", "strips_wide"]
    assert [one["name"] for one in lines["builders.strips"]["settings"]] == [
        "in_chans",
        "num_classes",
        "widths",
    ]


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
    assert "3 passed" in said


CUT = """
import sys, torch
torch.set_num_threads(1)
import compatkit as ck
from compatkit.splitting import publish_split, split

settings = {"num_classes": 5, "widths": [4, 6, 8]}
parts = split("strips_small", "stages.1", kwargs=settings, size=(16, 16), builder="strips", seed=3)
registry = ck.Registry.init(sys.argv[1])
print(*publish_split(registry, parts, "strips").values())
torch.save([parts[side].module.eval().state_dict() for side in ("extractor", "head")], sys.argv[2])
"""

LOAD = """
import json, sys, torch
torch.set_num_threads(1)
import compatkit as ck
from compatkit.errors import CompatkitError

registry = ck.Registry.open(sys.argv[1])
loaded = {}
for name, state in zip(("strips.extractor", "strips.head"), torch.load(sys.argv[2])):
    try:
        module = registry.build(name)
    except CompatkitError as error:
        loaded[name] = [type(error).__name__, str(error)]
        continue
    found = registry.manifest(name).blueprint
    same = all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    loaded[name] = [found.builder, found.library, found.model, found.kwargs, same]
print(json.dumps(loaded))
"""


def test_a_foreign_network_is_cut_published_and_loaded_only_where_its_package_is(
    site: Path, tmp_path: Path
) -> None:
    registry, states = str(tmp_path / "registry"), str(tmp_path / "states")
    said = call(sys.executable, "-W", "error", "-c", CUT, registry, states, PYTHONPATH=str(site))
    assert said.split() == ["strips.extractor@1.0.0", "strips.head@1.0.0"]
    settings = {"num_classes": 5, "widths": [4, 6, 8]}
    there = json.loads(
        call(sys.executable, "-W", "error", "-c", LOAD, registry, states, PYTHONPATH=str(site))
    )
    expected = ["strips", "compatkit-example 0.1.0", "strips_small", settings, True]
    assert there == {"strips.extractor": expected, "strips.head": expected}
    gone = json.loads(call(sys.executable, "-W", "error", "-c", LOAD, registry, states))
    for kind, message in gone.values():
        assert kind == "UnknownName"
        assert "No builder is called 'strips'" in message and "'builders.strips'" in message


def test_gone_with_its_package() -> None:
    script = "from compatkit.plugins import names; print('feature_norm' in names('regularizers'))"
    assert call(sys.executable, "-c", script).strip() == "False"
