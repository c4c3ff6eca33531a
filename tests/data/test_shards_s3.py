"""Shards in S3, read by worker processes: a server on loopback, and nothing else on the network."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from small import quick, same_parts

import compatkit as ck
from compatkit.errors import DataError

from .test_shards import samples, shard

pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'compatkit[remotes]'")
server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'compatkit[dev]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket with two shards, which are also in ``tmp_path``; no user's credentials are read."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name, value in (
        ("ACCESS_KEY_ID", "t"),
        ("SECRET_ACCESS_KEY", "t"),
        ("EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "none"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    system = fsspec.filesystem("s3")
    system.makedirs("bird-shards", exist_ok=True)  # the server keeps what other tests made
    for name, seed in (("train-0", 0), ("val-0", 100)):
        path = shard(tmp_path / "birds" / f"{name}.tar", samples(seed=seed))
        system.pipe_file(f"bird-shards/birds/{path.name}", path.read_bytes())
    yield "s3://bird-shards/birds"
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    running.stop()


def test_worker_processes_train_on_what_lies_there(bucket: str, tmp_path: Path) -> None:
    fits = []
    for address, workers in ((tmp_path / "birds", 0), (bucket, 0), (bucket, 2)):
        data = ck.data.load(address)
        task = ck.Task("birds", data, "simple_cnn", "forward_features", size=(16, 16), augment="imagenet")
        fits.append(quick(steps=3, batch_size=3, workers=workers).fit([task]))
    assert same_parts(fits[0], fits[1]) and same_parts(fits[1], fits[2])
    assert len({fit.run["tasks"][0]["data"]["digest"] for fit in fits}) == 1


def test_what_is_not_there(bucket: str) -> None:
    split = ck.data.load(bucket).train
    with pytest.raises(DataError):
        ck.data.load("s3://bird-shards/none")
    fsspec.filesystem("s3").rm("bird-shards/birds/train-0.tar")
    with pytest.raises(DataError) as caught:
        split.image(0)
    assert caught.value.subject == "bird-shards/birds/train-0.tar"
