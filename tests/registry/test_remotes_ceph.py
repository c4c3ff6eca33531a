"""What pushes and pulls cost on Ceph's S3 gateway, and uploads whose process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import s3_servers
from far import content

from compatkit.contracts.manifest import Payload
from compatkit.registry.blobs import blob_path
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.pushpull import pull
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'compatkit[remotes]'")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
MB = 2**20
ADDRESS = "s3://parts/team"
CHILD = """
import json, sys
from collections import Counter
from pathlib import Path
from aiobotocore.httpsession import AIOHTTPSession
from compatkit.registry.remotes import pushpull
from compatkit.registry.store import Store
requests, send = Counter(), AIOHTTPSession.send
async def counting(self, request):
    operation = "part" if "partNumber" in request.url else request.method
    requests[operation] += 1
    return await send(self, request)
AIOHTTPSession.send = counting
def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
action, folder, address, options, *patterns = sys.argv[1:]
store, before = Store.open(folder), memory()
report = getattr(pushpull, action)(store, address, patterns or None, options=json.loads(options)).check()
print(json.dumps({"requests": requests, "memory": memory() - before, "created": len(report.created)}))
"""


@attrs.frozen
class Ceph:
    """A bucket.

    Attributes:
        options: Options of its address.
        system: Its file system, for looks from outside.
    """

    options: dict[str, Any]
    system: Any

    def start(self, action: str, store: Store, *patterns: str) -> subprocess.Popen[str]:
        """Start a push or pull in a process of its own."""
        words = [action, str(store.root), ADDRESS, json.dumps(self.options), *patterns]
        return subprocess.Popen([sys.executable, "-c", CHILD, *words], stdout=subprocess.PIPE, text=True)

    def run(self, action: str, store: Store, *patterns: str) -> dict[str, Any]:
        """Push or pull; return requests by kind, the memory that it took in MB, and the number of new versions."""
        process = self.start(action, store, *patterns)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def parts(self) -> dict[str, int]:
        """Return the number of parts of each upload that is not complete, by its key."""
        answer = self.system.call_s3("list_multipart_uploads", Bucket="parts")
        return {
            item["Key"]: len(
                self.system.call_s3(
                    "list_parts", Bucket="parts", Key=item["Key"], UploadId=item["UploadId"]
                ).get("Parts", [])
            )
            for item in answer.get("Uploads", [])
        }


@pytest.fixture
def ceph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ceph]:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with s3_servers.ceph(tmp_path / "ceph") as server:
        system = s3fs.S3FileSystem(**server.options, skip_instance_cache=True)
        system.mkdir("parts")
        yield Ceph(server.options, system)


@pytest.fixture
def large(
    tmp_path: Path, manifest_of: Callable[..., Any], make_file: Callable[..., bytes]
) -> tuple[Store, str]:
    """A registry with one component of 320 MB, and the path of its weights."""
    store, size = Store.init(tmp_path / "large"), 320 * MB
    body = b"".join(bytes([number]) * MB for number in range(256)) + bytes(64 * MB)
    data = make_file({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, body)
    edge = store.put_blob(data)
    store.publish("large", manifest_of(Payload(edge, tensor_digest(data), 1, size)))
    return store, blob_path(edge.blob)


def test_few_requests_pull_one_part_and_push_nothing(
    tmp_path: Path, store: Store, publish: Callable[..., Any], ceph: Ceph
):
    many = Store.init(tmp_path / "many")
    for number in range(200):
        publish(many, f"zone{number % 9}/net{number}.head", number, kind="head")
    first = ceph.run("push", many)
    assert (
        first["created"] == 200 and sum(first["requests"].values()) < 4 * 200 + 20
    )  # weights, manifest, version, record
    assert sum(ceph.run("push", many)["requests"].values()) < 20
    pulled = ceph.run("pull", store, "zone3/net21.head")
    assert pulled["created"] == 1 and sum(pulled["requests"].values()) <= 12
    assert sum(ceph.run("pull", store, "zone3/net21.head")["requests"].values()) <= 7
    ceph.run("pull", store)
    assert content(store.root) == content(many.root)


def test_a_large_component_moves_in_little_memory(store: Store, large: tuple[Store, str], ceph: Ceph):
    source, _ = large
    assert ceph.run("push", source)["memory"] < 200
    assert ceph.run("pull", store)["memory"] < 200
    assert content(store.root) == content(source.root) and examine(store).sound


def test_an_upload_whose_process_is_killed_goes_on(store: Store, large: tuple[Store, str], ceph: Ceph):
    source, path = large
    process, end = ceph.start("push", source), time.monotonic() + 120
    while max(ceph.parts().values(), default=0) < 6:
        assert process.poll() is None and time.monotonic() < end, "not killed in time"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    there = ceph.parts()[f"team/{path}"]
    assert 6 <= there < 40 and not ceph.system.exists(f"parts/team/{path}")
    again = ceph.run("push", source)
    assert again["created"] == 1 and again["requests"]["part"] <= 41 - there + 4
    assert not ceph.parts()
    pull(store, ADDRESS, options=ceph.options).check()
    assert content(store.root) == content(source.root)


def test_two_processes_push_the_same_large_component(store: Store, large: tuple[Store, str], ceph: Ceph):
    source, _ = large
    processes = [ceph.start("push", source) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=300)
    assert [process.returncode for process in processes] == [0, 0]
    assert not ceph.parts()
    pull(store, ADDRESS, options=ceph.options).check()
    assert content(store.root) == content(source.root)
