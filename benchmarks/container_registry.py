"""Measure the memory and the requests of pushes to and pulls from Debian's container registry, on loopback.

    python benchmarks/container_registry.py [--megabytes 1200] [--components 200]

Each transfer of the large part runs in a process of its own; "own" is memory without pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from handmade import part
from servers import Server, docker_registry

from compatkit.contracts.manifest import Payload
from compatkit.registry.remotes.pushpull import pull, push
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest

REQUEST = re.compile(r'"(?:GET|HEAD|PUT|POST|PATCH) /v2/[^"]*" \d')
SHARES = {"VmRSS": "all", "RssAnon": "own"}


def publish(store: Store, name: str, body: bytes) -> None:
    """Publish a part whose weights are some bytes."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}})
    data = len(header).to_bytes(8, "little") + header.encode() + body
    payload = Payload(store.put_blob(data), tensor_digest(data), 1, len(body))
    store.publish(name, attrs.evolve(part(), payload=payload))


def transfer(way: str, root: str, address: str) -> None:
    """Push or pull everything, and print the peak memory of this process."""
    peaks, done = dict.fromkeys(SHARES, 0), threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            for key, _, rest in (line.partition(":") for line in open("/proc/self/status")):
                if key in peaks:
                    peaks[key] = max(peaks[key], int(rest.split()[0]) // 1024)

    threading.Thread(target=watch, daemon=True).start()
    start = time.monotonic()
    report = (push if way == "push" else pull)(Store.open(root), address).check()
    done.set()
    memory = ", ".join(f"{SHARES[key]} {peak} MB" for key, peak in peaks.items())
    print(f"{way} of {report.bytes / 1e6:.0f} MB: {time.monotonic() - start:.1f} s, memory: {memory}")


def large(folder: Path, server: Server, megabytes: int) -> None:
    """Measure the memory of one large part."""
    publish(Store.init(folder / "large"), "large", os.urandom(megabytes * 10**6))
    Store.init(folder / "copy")
    for way, store in (("push", "large"), ("pull", "copy")):
        words = [way, str(folder / store), f"oci://{server.host}/large"]
        subprocess.run([sys.executable, __file__, "--transfer", *words], check=True)


def many(folder: Path, server: Server, components: int) -> None:
    """Count the requests of many small parts."""
    address, here = f"oci://{server.host}/many", Store.init(folder / "many")
    for number in range(components):
        publish(here, f"parts/p{number}", number.to_bytes(16, "little"))
    single, all_of_them = Store.init(folder / "one"), Store.init(folder / "all")
    for what, act in {
        "first push": lambda: push(here, address),
        "same push": lambda: push(here, address),
        "pull of one": lambda: pull(single, address, "parts/p0"),
        "pull of all": lambda: pull(all_of_them, address),
        "same pull": lambda: pull(all_of_them, address),
    }.items():
        before, start = len(REQUEST.findall(server.log.read_text())), time.monotonic()
        act().check()
        seconds = time.monotonic() - start
        time.sleep(0.2)  # the log is written after the answer
        requests = len(REQUEST.findall(server.log.read_text())) - before
        print(f"{components} components, {what}: {requests} requests, {seconds:.1f} s")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1200)
    parser.add_argument("--components", type=int, default=200)
    parser.add_argument("--transfer", nargs=3, metavar=("WAY", "REGISTRY", "ADDRESS"))
    words = parser.parse_args()
    if words.transfer:
        transfer(*words.transfer)
        return
    with tempfile.TemporaryDirectory() as folder, docker_registry(Path(folder) / "registry") as server:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        large(Path(folder), server, words.megabytes)
        many(Path(folder), server, words.components)


if __name__ == "__main__":
    main()
