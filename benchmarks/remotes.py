"""Measure what remotes cost: requests, seconds and peak memory of pushes and pulls, on a real S3 server.

Run ``python benchmarks/remotes.py [--components N] [--megabytes N] [--out FILE]``. It starts Ceph's S3 gateway on
127.0.0.1, with its store in memory (CONTRIBUTING.md names the packages), and ends it. Each operation is a process of
its own, which counts every HTTP request that it sends, also repeated ones, and reads its own peak memory (VmHWM). Files
that it has mapped count as memory, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

BUCKET = "benchmark"
MEGABYTE = 10**6


# --- one operation, in a process of its own


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the HTTP requests of S3's client, by method."""
    from aiobotocore.httpsession import AIOHTTPSession

    requests: Counter[str] = Counter()
    send = AIOHTTPSession.send

    async def counting(self: AIOHTTPSession, request: Any) -> Any:
        requests[request.method] += 1
        return await send(self, request)

    AIOHTTPSession.send = counting
    try:
        yield requests
    finally:
        AIOHTTPSession.send = send


def peak() -> float:
    """Return this process's peak memory in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / MEGABYTE


def child(operation: str, folder: str, address: str, options: dict[str, Any], patterns: list[str]) -> None:
    """Push or pull, and print requests, seconds and memory as JSON."""
    from compatkit.registry.copy.settings import TransferSettings
    from compatkit.registry.remotes import pushpull
    from compatkit.registry.store import Store

    store = Store.init(Path(folder), exist_ok=True)
    import s3fs  # noqa: F401 - its memory is not the transfer's

    before, start = peak(), time.monotonic()
    with counted() as requests:
        transfer = pushpull.push if operation == "push" else pushpull.pull
        report = transfer(store, address, patterns or None, options=options, settings=TransferSettings())
    report.check()
    print(
        json.dumps(
            {
                "requests": dict(requests),
                "seconds": time.monotonic() - start,
                "before": before,
                "peak": peak(),
                "created": len(report.created),
            }
        )
    )


# --- registries, written as plain files


def fill(root: Path, names: int, versions: int, megabytes: float = 0.001) -> Path:
    """Write a registry with ``names`` extractors and as many heads, each head trained with its extractor."""
    from compatkit.contracts.contract import (
        Blueprint,
        Contract,
        Data,
        Port,
        Protocol,
        Statistical,
        Structural,
    )
    from compatkit.contracts.manifest import Edge, Manifest, Parent, Payload, to_bytes
    from compatkit.registry.store import Store
    from compatkit.registry.weights.tensorfile import tensor_digest

    store = Store.init(root)
    features = Port("features", ("N", 64, "H", "W"), measured={"32x32": (16, 16)})
    structures = {
        "extractor": Structural((Port("image", ("N", 1, "H", "W")),), (features,)),
        "head": Structural((features,), (Port("logits", ("N", 10), layout="NC"),)),
    }
    size = int(megabytes * MEGABYTE)
    entry = {"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = json.dumps(entry).encode()
    run = _blob(root, b'{"run":"benchmark"}\n')
    for number in range(names):
        parents: dict[str, tuple[Parent, ...]] = {}
        for minor in range(versions):
            for kind, structural in structures.items():
                seed = hashlib.sha256(f"{number} {minor} {kind}".encode()).digest()
                body = (seed * (size // 32 + 1))[:size]
                data = len(header).to_bytes(8, "little") + header + body
                payload = Payload(Edge(_blob(root, data), len(data)), tensor_digest(data), 1, size)
                manifest = Manifest(
                    kind=kind,
                    blueprint=Blueprint("timm", "timm", "resnet20_cifar", {}, "layer2", kind, "fx", (32, 32)),
                    payload=payload,
                    contract=Contract(
                        structural,
                        Data((32, 32), "L", (0.4,), (0.2,)),
                        Protocol("batch", ()),
                        Statistical(None, None),
                    ),
                    parents=parents.get(kind, ()),
                    training={"run": {"blob": run, "bytes": 20}},
                )
                digest, name = _blob(root, to_bytes(manifest)), f"zone{number % 40}/net{number}.{kind}"
                parents["head"] = (Parent("trained_with", digest),)
                path = root / "refs" / name / "@versions" / f"1.{minor}.0"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{digest} {name}@1.{minor}.0\n")
                path.chmod(0o444)
                record = path.parent.with_name("@published") / path.name
                record.parent.mkdir(exist_ok=True)
                record.write_text(
                    f'{{"by":"user:anna","commit":"","digest":"{digest}","time":"2026-01-01T00:00:00Z"}}\n'
                )
    return store.root


def _blob(root: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    path = root / "blobs" / "sha256" / name[:2] / name
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.write_bytes(data)
        path.chmod(0o444)
    return f"sha256:{name}"


# --- the measurements


@attrs.define(eq=False)
class Measuring:
    """Operations on one server.

    Attributes:
        options: Options of its addresses.
        rows: Rows of the table.
    """

    options: dict[str, Any]
    rows: list[str] = attrs.field(factory=list)

    def run(self, what: str, operation: str, folder: Path, prefix: str, *patterns: str) -> None:
        """Run one operation in a process of its own, and add a row."""
        words = [operation, str(folder), f"s3://{BUCKET}/{prefix}", json.dumps(self.options), *patterns]
        done = subprocess.run(
            [sys.executable, __file__, "--child", *words], stdout=subprocess.PIPE, text=True, check=True
        )
        result = json.loads(done.stdout.splitlines()[-1])
        methods = ", ".join(f"{count} {method}" for method, count in sorted(result["requests"].items()))
        total = sum(result["requests"].values())
        row = (
            f"| {what} | {result['created']:,} | **{total:,}** ({methods}) | {result['seconds']:.1f} | "
            f"{result['peak'] - result['before']:,.0f} | {result['peak']:,.0f} |"
        )
        self.rows.append(row)
        print(row, flush=True)


def measure(options: dict[str, Any], work: Path, components: int, megabytes: int) -> list[str]:
    """Return the rows of the table."""
    import s3fs

    os.environ["COMPATKIT_CACHE"] = str(work / "cache")
    s3fs.S3FileSystem(**options).mkdir(BUCKET)
    measuring = Measuring(options)
    if components:
        seven = fill(work / "seven", 1, 4)
        (seven / "refs/zone0/net0.head/@versions/1.3.0").unlink()
        measuring.run("first push of 7 versions", "push", seven, "seven")
        measuring.run("the same again", "push", seven, "seven")
        many = fill(work / "many", components // 2, 1)
        measuring.run(f"first push of {components:,} components", "push", many, "many")
        measuring.run("the same again", "push", many, "many")
        _add_one(many)
        measuring.run("push of one more", "push", many, "many")
        head = "zone7/net7.head"
        measuring.run("pull of one part with its extractor", "pull", work / "one", "many", head)
        measuring.run("the same again", "pull", work / "one", "many", head)
        measuring.run(f"pull of all {components:,}", "pull", work / "all", "many")
        measuring.run("the same again", "pull", work / "all", "many")
    if megabytes:
        big = fill(work / "big", 1, 1, megabytes / 2)
        measuring.run(f"push of {megabytes:,} MB in two files", "push", big, "big")
        measuring.run("pull of both", "pull", work / "big-here", "big")
    return measuring.rows


def _add_one(root: Path) -> None:
    """Give the manifest of one version another number."""
    source = root / "refs/zone7/net7.head/@versions/1.0.0"
    digest = source.read_text().split()[0]
    (source.parent / "1.1.0").write_text(f"{digest} zone7/net7.head@1.1.0\n")


def main(words: Sequence[str] | None = None) -> None:
    """Run the measurements, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--components", type=int, default=2000)
    parser.add_argument("--megabytes", type=int, default=1200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=argparse.REMAINDER)
    settings = parser.parse_args(words)
    if settings.child:
        operation, folder, address, options, *patterns = settings.child
        child(operation, folder, address, json.loads(options), patterns)
        return
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from s3_servers import ceph

    with tempfile.TemporaryDirectory() as folder, ceph(Path(folder, "ceph")) as server:
        rows = measure(server.options, Path(folder), settings.components, settings.megabytes)
    header = "| operation | new | requests | seconds | memory added, MB | peak memory, MB |"
    table = "\n".join([header, "| :--- | ---: | ---: | ---: | ---: | ---: |", *rows])
    text = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Ceph radosgw.\n\n{table}\n"
    print(text)
    if settings.out:
        settings.out.write_text(text)


if __name__ == "__main__":
    main()
