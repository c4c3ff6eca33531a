"""Pretrained weights where nobody answers: known in seconds, and what is in the cache is found all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compatkit.adapters import offline

SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from small import data_set, quick
import compatkit as ck
import timm

task = ck.Task("a", data_set("a", channels=3, size=(32, 32)), "resnet18", "layer2", weights="pretrained")
began = time.perf_counter()
try:
    quick(steps=1).fit([task])
except ck.errors.EnvironmentFailure as error:
    assert time.perf_counter() - began < 5, time.perf_counter() - began
    assert error.subject == "resnet18"
    print(error)
"""


def test_a_run_that_starts_from_weights_that_nobody_gives_fails_in_seconds(tmp_path: Path) -> None:
    """Port 9 of this machine is closed."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    del environment["HF_HUB_OFFLINE"]
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert "they are not in the cache, and http://127.0.0.1:9 does not respond. Connect to" in result.stdout
    assert "Retrying" not in result.stderr


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy."""
    monkeypatch.setattr(offline, "getproxies", dict)


@pytest.mark.usefixtures("direct")
def test_a_hub_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert offline.reachable()


def test_behind_a_proxy_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "getproxies", lambda: {"https": "http://proxy:3128"})
    refuse: Any = lambda *args: pytest.fail("it was asked without the proxy")  # noqa: E731
    monkeypatch.setattr("socket.create_connection", refuse)
    assert offline.reachable()
