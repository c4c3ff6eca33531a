"""A real package of somebody else: built as a wheel, installed elsewhere, found, listed and used offline."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from far import content
from pages import blocks
from small import data_set, quick

import compatkit as ck
from compatkit.components.splitting import publish_split, split
from compatkit.errors import LayoutError, PluginError, UnknownName, UsageError
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "third_party"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")

USE = """
import json, sys
from compatkit.plugins import RunPlugins, find, listing, use
from compatkit.evaluation.metrics import make_metric

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
result = metric.finalize(metric.update(metric.init(), logits, torch.tensor([0, 1])))
print(json.dumps({
    "imported": imported,
    "offer": [offer.key, offer.distribution, offer.version, offer.source],
    "manifest": plugins.manifest(),
    "loss": loss.item(),
    "confidence": result.to_json(),
    "listing": [line.to_json() for line in listing(check=True)],
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
    """Folder into which the example is built and installed; no index is asked."""
    folder = tmp_path_factory.mktemp("third_party")
    pytest.importorskip("setuptools", reason="building a wheel without a network needs setuptools here")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    target = folder / "site"
    install = ("install", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(target))
    call(*PIP, *install, str(source))
    return target


def test_the_program_on_its_page_runs(site: Path, tmp_path: Path) -> None:
    (block,) = blocks(EXAMPLE / "README.md", "python")
    script = tmp_path / "page.py"
    script.write_text(block.text.replace("steps=1000", "steps=2") + "print(sorted(fit.history.names))\n")
    assert "digits/feature_norm/deviation" in call(
        sys.executable, "-W", "error", str(script), PYTHONPATH=str(site)
    )


def test_a_foreign_package_is_found_listed_and_used(site: Path, tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(USE)
    document = json.loads(call(sys.executable, "-W", "error", str(script), PYTHONPATH=str(site)))
    assert document["imported"] is False
    key, distribution, version, source = document["offer"]
    assert (key, distribution, version) == ("regularizers.feature_norm", "compatkit-example", "0.1.0")
    assert Path(source) == site / "compatkit_example" / "feature_norm.py"
    assert document["manifest"] == [
        {
            "name": "regularizers.feature_norm",
            "as": "feature_norm",
            "distribution": "compatkit-example",
            "version": "0.1.0",
            "settings": {"weight": 0.5, "start": 0, "stop": None, "target": 3.0},
        }
    ]
    assert document["loss"] == 1.0  # (mean square 4 - target 3) squared
    assert (document["confidence"]["value"], document["confidence"]["count"]) == (0.75, 2)
    lines = {f"{entry['kind']}.{entry['name']}": entry for entry in document["listing"]}
    for name in (
        "regularizers.feature_norm",
        "regularizers.decoder",
        "metrics.confidence",
        "builders.strips",
        "remotes.sqlite",
    ):
        assert (lines[name]["status"], lines[name]["distribution"]) == ("active", "compatkit-example"), lines[
            name
        ]
    assert lines["regularizers.feature_norm"]["hooks"] == ["compatkit_regularizers", "compatkit_losses"]
    assert lines["builders.strips"]["models"] == ["strips_small", "strips_wide"]
    assert [setting["name"] for setting in lines["builders.strips"]["settings"]] == [
        "in_chans",
        "num_classes",
        "widths",
    ]


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """The package is there; it is gone, and forgotten, afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield
    for name in [module for module in sys.modules if module.partition(".")[0] == "compatkit_example"]:
        del sys.modules[name]


def test_the_package_checks_itself(site: Path) -> None:
    with installed(site):
        checks = runpy.run_path(str(EXAMPLE / "tests" / "test_conformance.py"))
        result = [check for name, check in checks.items() if name.startswith("test_")]
        assert len(result) == 4
        for check in result:
            check()


def test_a_foreign_regularizer_trains_a_module_of_its_own(site: Path) -> None:
    flat = ck.Task("flat", data_set("flat"), "resnet8_cifar", "global_pool", size=16)
    task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer2", size=16)
    with installed(site):
        explanation = quick(steps=1).explain([task], ["decoder"])
        assert (explanation.owners[-1]["owner"], explanation.owners[-1]["moved_by"]) == (
            "plugin.decoder.layer",
            "plugin.decoder.layer (adam)",
        )
        losses = quick(steps=20, log_every=5).fit([task], ["decoder"]).history["left/decoder/error"]
        assert losses[-1] < 0.7 * losses[0]
        with pytest.raises(PluginError, match="needs feature maps of one width") as caught:
            quick(steps=1).fit([task, flat], ["decoder"])
        assert (caught.value.code, caught.value.subject) == ("plugin", "decoder")


LOAD = """
import json, sys, torch
torch.set_num_threads(1)
import compatkit as ck

registry = ck.Registry.open(sys.argv[1])
loaded = {}
for name, state in zip(("strips.extractor", "strips.head"), torch.load(sys.argv[2])):
    module = registry.load(name)
    found = registry.store.manifest(name).blueprint
    same = all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    loaded[name] = [found.builder, found.library, found.model, found.kwargs, same]
print(json.dumps(loaded))
"""


@pytest.mark.case("G", "I")
def test_a_foreign_network_is_cut_published_and_loaded_only_where_its_package_is(
    site: Path, tmp_path: Path
) -> None:
    registry, states = ck.Registry.init(tmp_path / "registry"), str(tmp_path / "states")
    settings = {"num_classes": 5, "widths": [4, 6, 8]}
    with installed(site):
        parts = split("strips_small", "stages.1", kwargs=settings, size=(16, 16), builder="strips", seed=3)
        names = publish_split(registry.store, parts, "strips")
    assert [*names.values()] == ["strips.extractor@1.0.0", "strips.head@1.0.0"]
    torch.save([parts[side].module.eval().state_dict() for side in names], states)
    root = str(registry.store.root)
    document = json.loads(call(sys.executable, "-W", "error", "-c", LOAD, root, states, PYTHONPATH=str(site)))
    expected = ["strips", "compatkit-example 0.1.0", "strips_small", settings, True]
    assert document == {"strips.extractor": expected, "strips.head": expected}
    for name in names.values():
        with pytest.raises(UnknownName, match=r"(?s)No builder is called 'strips'.*'builders\.strips'"):
            ck.Registry.open(root).load(name)


def test_gone_with_its_package() -> None:
    script = "from compatkit.plugins import names; print('feature_norm' in names('regularizers'))"
    assert call(sys.executable, "-c", script).strip() == "False"


def test_a_foreign_remote_is_pushed_to_and_pulled_from(site: Path, tmp_path: Path) -> None:
    address = f"sqlite://{tmp_path}/parts.db"
    registry = ck.Registry.init(tmp_path / "parts")
    publish_split(registry.store, split("resnet8_cifar", "layer2", size=(16, 16)), "small")
    with installed(site):
        with pytest.raises(LayoutError):
            registry.pull(address)
        assert not (tmp_path / "parts.db").exists()
        pushed = registry.push(address, create=True, options={"timeout": 30.0})
        again = registry.push(address)
        pulled = ck.Registry.init(tmp_path / "copy").pull(address)
        assert (tmp_path / "parts.db").is_file() and len(pushed.created) == 2 and again.created == []
        assert content(tmp_path / "copy") == content(tmp_path / "parts") and pulled.bytes == pushed.bytes
        with pytest.raises(UsageError, match=r"fsspec, hf, .*oci_layout, .*sqlite") as relative:
            registry.push("sqlite://parts.db")
        assert relative.value.subject == "sqlite://parts.db"
        with pytest.raises(UsageError, match="tiemout"):
            registry.push(address, options={"tiemout": 1})


def test_of_many_writers_of_a_foreign_remote_one_creates_a_file(site: Path, tmp_path: Path) -> None:
    with installed(site):
        files = locate(f"sqlite://{tmp_path}/parts.db")
        assert isinstance(files, Files)
        created = files.in_parallel(
            lambda number: files.create("refs/a/@versions/1.0.0", b"%d" % number), range(16)
        )
        (winner,) = [number for number, won in created if won]
        assert files.read("refs/a/@versions/1.0.0", 0, 99) == b"%d" % winner
        assert files.sizes("refs") == {"refs/a/@versions/1.0.0": len(str(winner))}
