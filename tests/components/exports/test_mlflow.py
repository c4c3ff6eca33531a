"""Folders of MLflow: what they hold, that MLflow alone runs them, and that they are whole or not there."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set

import compatkit as ck
from compatkit.adapters.cutting.signals import signal
from compatkit.components.exports.document import from_text
from compatkit.components.splitting import publish_split, split
from compatkit.errors import IncompatibleError, MissingDependency, UnsafeCheckpoint, UsageError
from compatkit.evaluation.preprocessing import normalize

IMAGES = signal((5, 3, 16, 16))
CLASSES = ("cat", "dog", "owl")
POLICIES = ("running", "batch", "reestimate")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    made = ck.Registry.init(tmp_path_factory.mktemp("mlflow") / "parts")
    for seed, name in enumerate("ab"):
        parts = split(
            "resnet8_cifar", "layer2", kwargs={"num_classes": 3}, size=(16, 16), labels=CLASSES, seed=seed
        )
        publish_split(made.store, parts, f"nets/{name}")
    return made


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow reports usage to its makers otherwise."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def recombined(registry: ck.Registry, policy: str = "running") -> ck.Recombination:
    images = data_set("left", size=(16, 16), channels=3).test if policy == "reestimate" else None
    return registry.recombine("nets/a.extractor", "nets/b.head", bn_policy=policy, data=images)


def outputs(module: Any, inputs: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return module(inputs).numpy()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_mlflow_runs_a_recombination_without_compatkit(
    registry: ck.Registry, policy: str, tmp_path: Path
) -> None:
    """A process that has MLflow and torch, and imports nothing of compatkit, gives the same logits."""
    pytest.importorskip("mlflow", reason="pip install 'compatkit[mlflow]'")
    made = recombined(registry, policy)
    written = registry.export(made, tmp_path / "ab", format="mlflow")
    assert written.bytes == sum(file.stat().st_size for file in written.path.rglob("*") if file.is_file())
    assert from_text((tmp_path / "ab" / "compatkit-export.json").read_text()) == written.description
    np.save(tmp_path / "images.npy", IMAGES.numpy())
    script = (
        "import sys, numpy as np, mlflow.pyfunc\n"
        "images = np.load('images.npy')\n"
        "np.save('logits.npy', mlflow.pyfunc.load_model('ab').predict(images))\n"
        "assert not [name for name in sys.modules if name.startswith('compatkit')]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), outputs(made, IMAGES), rtol=1e-4, atol=1e-4)
    assert not np.allclose(np.load(tmp_path / "logits.npy"), outputs(recombined(registry), IMAGES + 1))


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_signature_and_metadata_say_what_goes_in(registry: ck.Registry, tmp_path: Path) -> None:
    pyfunc: Any = pytest.importorskip("mlflow.pyfunc", reason="pip install 'compatkit[mlflow]'")
    expected = {
        ("nets/a.extractor", False): ("float32", (-1, 3, 16, 16), "float32 images"),
        ("nets/a.extractor", True): ("uint8", (-1, 16, 16, 3), "uint8 images"),
        ("nets/a.head", False): ("float32", (-1, 32, 8, 8), "features"),
    }
    for at, ((reference, pixels), (dtype, shape, takes)) in enumerate(expected.items()):
        folder = tmp_path / str(at)
        registry.export(reference, folder, format="mlflow", settings={"pixels": pixels})
        loaded = pyfunc.load_model(str(folder))
        (spec,) = loaded.metadata.signature.inputs.inputs
        facts = loaded.metadata.metadata["compatkit"]
        assert (spec.type.name, spec.shape) == (dtype, shape), reference
        assert (
            takes.removesuffix("float32 images") in facts["input"]
            and facts["reference"] == f"{reference}@1.0.0"
        )
        example = loaded.input_example
        assert example.shape[1:] == shape[1:] and len(loaded.predict(example)) == len(example)
        part = registry.load(reference)
        contract = registry.store.manifest(registry.store.resolve(reference)).contract.data
        assert facts["preprocessing"]["mean"] == list(contract.mean)
        assert facts["classes"] == list(CLASSES if reference.endswith("head") else ())
        inputs = torch.from_numpy(example)
        if pixels:
            inputs = normalize(inputs.permute(0, 3, 1, 2), contract)
        np.testing.assert_allclose(loaded.predict(example), outputs(part, inputs), rtol=1e-4, atol=1e-4)
        with pytest.raises(Exception, match=r"schema|shape|type"):
            loaded.predict(np.zeros((1, 7), "float64"))


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_a_machine_with_a_gpu_and_the_flavor_pytorch_load_it_too(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyfunc: Any = pytest.importorskip("mlflow.pyfunc", reason="pip install 'compatkit[mlflow]'")
    pytorch: Any = pytest.importorskip("mlflow.pytorch", reason="pip install 'compatkit[mlflow]'")
    made = recombined(registry)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    registry.export(made, tmp_path / "ab", format="mlflow")
    result = pyfunc.load_model(str(tmp_path / "ab")).predict(IMAGES.numpy())
    np.testing.assert_allclose(result, outputs(made, IMAGES), rtol=1e-4, atol=1e-4)
    program = pytorch.load_model(str(tmp_path / "ab"))
    np.testing.assert_allclose(outputs(program, IMAGES), outputs(made, IMAGES), rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_a_folder_is_logged_registered_and_loaded_by_alias(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="pip install 'compatkit[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="runs in SQLite need the whole MLflow: pip install mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    made = recombined(registry)
    registry.export(made, "ab", format="mlflow")
    with mlflow.start_run() as run:
        mlflow.log_artifacts("ab", "model")
    version = mlflow.register_model(f"runs:/{run.info.run_id}/model", "ab")
    mlflow.MlflowClient().set_registered_model_alias("ab", "prod", version.version)
    result = mlflow.pyfunc.load_model("models:/ab@prod").predict(IMAGES.numpy())
    with mlflow.start_run():
        log_model: Any = importlib.import_module("mlflow.pytorch").log_model
        example = IMAGES[:2].numpy()
        logged = log_model(made, name="model", input_example=example, serialization_format="pt2")
        with pytest.raises(UsageError):
            log_model(made, name="pickled", input_example=example, serialization_format="pickle")
    by_itself = mlflow.pyfunc.load_model(logged.model_uri).predict(IMAGES.numpy())
    np.testing.assert_allclose(by_itself, outputs(made, IMAGES), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result, outputs(made, IMAGES), rtol=1e-4, atol=1e-4)


@pytest.fixture
def address(registry: ck.Registry, tmp_path: Path) -> Iterator[str]:
    """A server of `mlflow models serve` with a recombination that takes pixels."""
    for name in ("mlflow", "fastapi", "uvicorn"):
        pytest.importorskip(name, reason="pip install 'compatkit[mlflow]' fastapi uvicorn")
    registry.export(recombined(registry), tmp_path / "ab", format="mlflow", settings={"pixels": True})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(tmp_path / "ab")]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    programs = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, env=programs, start_new_session=True
        )
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5)
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.25)
        yield f"http://127.0.0.1:{port}"
    finally:
        if server.poll() is None:
            os.killpg(server.pid, SIGTERM)
        server.wait(30)


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_mlflow_serves_pixels(registry: ck.Registry, address: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    request = urllib.request.Request(
        f"{address}/invocations",
        json.dumps({"inputs": pixels.tolist()}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        result = np.array(json.load(reply)["predictions"])
    made = recombined(registry)
    expected = outputs(made, normalize(torch.from_numpy(pixels).permute(0, 3, 1, 2), made.data))
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_what_cannot_be_a_pyfunc_is_refused_and_nothing_is_left(
    registry: ck.Registry, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow", reason="pip install 'compatkit[mlflow]'")
    with pytest.raises(IncompatibleError):
        registry.export("nets/a.head", tmp_path / "head", format="mlflow", settings={"pixels": True})
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UsageError):
        registry.export("nets/a.head", tmp_path / "taken", format="mlflow")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError):
        registry.export("nets/a.head", tmp_path / "folder", format="mlflow")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "taken"]
    assert (tmp_path / "taken").read_text() == "mine"


def test_without_mlflow_the_error_says_what_to_install(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mlflow" else present(name, *more)
    )
    with pytest.raises(MissingDependency) as error:
        registry.export("nets/a.head", tmp_path / "head", format="mlflow")
    assert (error.value.code, error.value.subject) == ("missing-dependency", "mlflow")
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("pixels", [False, True])
def test_a_folder_is_adopted_bit_for_bit(registry: ck.Registry, pixels: bool, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="pip install 'compatkit[mlflow]'")
    registry.export(recombined(registry), tmp_path / "ab", format="mlflow", settings={"pixels": pixels})
    other = ck.Registry.init(tmp_path / "other")
    published = other.adopt(tmp_path / "ab", "zoo/ab")
    for side, source in {"extractor": "nets/a.extractor", "head": "nets/b.head"}.items():
        adopted, original = (
            made.store.manifest(made.store.resolve(name)).payload.tensors
            for made, name in ((other, published[side]), (registry, source))
        )
        assert adopted == original


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_folders_that_mlflow_wrote_by_itself(tmp_path: Path) -> None:
    """A program gives its weights; a pickled network is refused, and what it names is not run."""
    save_model: Any = pytest.importorskip(
        "mlflow.pytorch", reason="pip install 'compatkit[mlflow]'"
    ).save_model
    import timm

    network = timm.create_model("resnet18", num_classes=4).eval()
    example = np.zeros((2, 3, 64, 64), "float32")
    save_model(network, tmp_path / "program", input_example=example, serialization_format="pt2")
    save_model(network, tmp_path / "pickled", serialization_format="pickle")
    other = ck.Registry.init(tmp_path / "other")
    adopt: dict[str, Any] = {"model": "resnet18", "cut": "layer2", "size": (64, 64)}
    other.adopt(tmp_path / "program", "zoo/net", **adopt)
    state = {**other.load("zoo/net.extractor").state_dict(), **other.load("zoo/net.head").state_dict()}
    assert state.keys() == network.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())
    with pytest.raises(UnsafeCheckpoint):
        other.adopt(tmp_path / "pickled", "zoo/wrong", **adopt)
    sklearn = tmp_path / "other_flavour"
    sklearn.mkdir()
    for name in ("MLmodel", "model.pkl"):
        (sklearn / name).write_bytes(b"")
    with pytest.raises(UsageError) as error:
        other.adopt(sklearn, "zoo/wrong", **adopt)
    assert error.value.subject == sklearn
