"""The page about serving: its commands and programs run as they stand, and its server does what the page says."""

from __future__ import annotations

import io
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import REPOSITORY, Block, blocks
from PIL import Image

import compatkit as ck

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
PAGE = blocks(REPOSITORY / "docs" / "how_to" / "serving.md", "bash", "python")
PIP = "pip install onnxruntime fastapi uvicorn python-multipart mlflow"


def block(text: str) -> Block:
    """Return the only block that contains a text."""
    (found,) = [block for block in PAGE if text in block.text]
    return found


class Folder:
    """A folder in which blocks of the page run, as a new user would run them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = os.environ | {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "COMPATKIT_TRUST": str(path / "trust"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def command(self, line: str) -> str:
        program, *words = shlex.split(line)
        assert program == "compatkit"
        return self.run(sys.executable, "-m", "compatkit", *words)

    def follow(self, block: Block) -> str:
        """Run a block; one that names its file is written to it."""
        if block.text.startswith("# app.py\n"):
            (self.path / "app.py").write_text(block.text)
            return ""
        if block.language == "bash":
            return "".join(map(self.command, block.text.splitlines()))
        return self.run(sys.executable, "-c", block.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder after the first blocks of the page: networks, a photo, a key, an alias."""
    made = Folder(tmp_path_factory.mktemp("serving"))
    for text in ("classes.txt", "compatkit init parts", "# app.py"):
        made.follow(next(block for block in PAGE if text in block.text))
    return made


def network(folder: Folder, reference: str) -> Any:
    return ck.Registry(folder.path / "parts").load(reference)


def test_onnx_runs(folder: Folder) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=PIP)
    folder.follow(block("--format onnx"))
    printed = folder.follow(block("onnxruntime.InferenceSession"))
    logits = np.array([float(word) for word in printed.partition("[[")[2].strip("]\n").split()])
    photo = Image.open(folder.path / "photo.png").resize((64, 64), Image.Resampling.BICUBIC)
    made = network(folder, "pairs/ab@1.0.0")
    data = made.data
    values = (np.asarray(photo) / 255 - data.mean) / data.std
    import torch

    with torch.no_grad():
        expected = made(torch.from_numpy(values).permute(2, 0, 1)[None].float())
    np.testing.assert_allclose(logits, expected[0].numpy(), rtol=1e-3, atol=1e-4)


def test_torch_export_runs(folder: Folder) -> None:
    folder.follow(block("--format torch_export"))
    printed = folder.follow(block("torch.export.load("))
    assert [name for name in ("cat", "dog", "owl") if name in printed]


@pytest.mark.filterwarnings("default")
def test_mlflow_runs(folder: Folder) -> None:
    for name in ("mlflow", "sqlalchemy"):
        pytest.importorskip(name, reason=PIP)
    folder.follow(block("--format mlflow"))
    printed = folder.follow(block("mlflow.log_artifacts"))
    assert "pairs/ab@1.0.0 uint8 images" in printed
    folder.follow(block("compatkit --registry parts adopt"))
    for adopted, source in {"back/ab.extractor": "nets/a.extractor", "back/ab.head": "nets/b.head"}.items():
        store = ck.Registry(folder.path / "parts").store
        payloads = [store.manifest(store.resolve(name)).payload.tensors for name in (adopted, source)]
        assert payloads[0] == payloads[1]
    script = "import mlflow.pyfunc; mlflow.pyfunc.load_model('ab'); mlflow.pyfunc.load_model('ab-pixels')"
    folder.environment["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"
    folder.run(sys.executable, "-c", script)


@pytest.fixture
def address(folder: Folder) -> Iterator[str]:
    """The address of the page's server."""
    for name in ("fastapi", "uvicorn", "multipart", "requests", "cryptography"):
        pytest.importorskip(name, reason=PIP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--host", "127.0.0.1", "--port", str(port)]
    with (folder.path / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder.path, env=folder.environment, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_server_classifies_follows_the_alias_and_refuses(folder: Folder, address: str) -> None:
    import requests

    def serves(reference: str) -> bool:
        try:
            return requests.get(f"{address}/health", timeout=5).json() == {"component": reference}
        except requests.ConnectionError:
            return False

    def classify(*contents: bytes) -> tuple[int, Any]:
        files = [("images", (f"{at}.png", content)) for at, content in enumerate(contents)]
        reply = requests.post(f"{address}/classify", files=files, timeout=60)
        return reply.status_code, reply.json()

    def answers_as(reference: str) -> None:
        status, reply = classify(photo, other)
        assert (status, reply["component"]) == (200, reference)
        expected = network(folder, reference).predict(
            [folder.path / "photo.png", Image.open(io.BytesIO(other))]
        )
        for row, best in zip(reply["images"], expected.top(3), strict=True):
            assert [one["label"] for one in row] == [one.label for one in best]
            assert [one["probability"] for one in row] == pytest.approx(
                [one.probability for one in best], abs=1e-3
            )

    eventually(lambda: serves("pairs/ab@1.0.0"))
    photo = (folder.path / "photo.png").read_bytes()
    stream = io.BytesIO()
    Image.new("L", (30, 50), 200).save(stream, "JPEG")
    other = stream.getvalue()
    answers_as("pairs/ab@1.0.0")
    for content in (b"no image", b"", photo[:500], b"<svg/>"):
        status, reply = classify(photo, content)
        assert status == 400 and reply["detail"].startswith("1.png"), content
    assert classify(*[other] * 33)[0] == 413
    assert classify(photo + bytes(10_000_000))[0] == 413
    assert classify()[0] == 422
    recombine, sign, move = block("pairs/ab prod 2.0.0").text.splitlines()
    folder.command(recombine)
    folder.command(move)  # too early: it is not signed
    log = folder.path / "log"
    eventually(lambda: "unsigned" in log.read_text())
    assert log.read_text().count("still serving pairs/ab@1.0.0") == 1
    answers_as("pairs/ab@1.0.0")
    folder.command(sign)
    eventually(lambda: serves("pairs/ab@2.0.0"))
    answers_as("pairs/ab@2.0.0")
    folder.command(move.replace("2.0.0", "1.0.0"))
    eventually(lambda: serves("pairs/ab@1.0.0"))


def test_every_block_of_the_page_is_run_here() -> None:
    run = {
        *("classes.txt", "compatkit init parts", "# app.py", "--format onnx", "onnxruntime.InferenceSession"),
        *("--format torch_export", "torch.export.load(", "--format mlflow", "mlflow.log_artifacts"),
        *("compatkit --registry parts adopt", "pairs/ab prod 2.0.0"),
    }
    assert all(any(text in block.text for text in run) for block in PAGE) and len(PAGE) == len(run)
