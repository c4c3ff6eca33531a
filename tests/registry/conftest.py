"""Fixtures of the registry's tests: an empty store, hand-made tensor files, and manifests to vary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import fsspec
import pytest
from far import fill

from compatkit.contracts.contract import (
    Blueprint,
    Contract,
    Data,
    Label,
    Port,
    Probe,
    Protocol,
    Scaled,
    Statistical,
    Structural,
)
from compatkit.contracts.manifest import Manifest, Payload
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest


def file_of(header: Any, body: bytes = b"") -> bytes:
    """Return a safetensors file whose header is ``header``: JSON values, or bytes to write as they are."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + body


def tensor_file(value: int = 0, size: int = 16) -> bytes:
    """Return a file with the one U8 tensor ``weight``, every byte ``value``."""
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    return file_of({"weight": entry}, bytes([value]) * size)


@pytest.fixture
def make_file() -> Callable[..., bytes]:
    return file_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "parts")


@pytest.fixture
def put() -> Callable[..., Payload]:
    """Put a small payload that differs with ``value``."""

    def put_payload(store: Store, value: int = 0) -> Payload:
        data = tensor_file(value)
        return Payload(store.put_blob(data), tensor_digest(data), 1, 16)

    return put_payload


CONTRACT = Contract(
    Structural(
        (Port("image", ("N", 1, "H", "W")),),
        (
            Port(
                "features",
                ("N", 32, Scaled("H", 1, 2, 0), Scaled("W", 1, 2, 0)),
                range="nonnegative",
                measured={"32x32": (16, 16), "33x33": (17, 17)},
            ),
        ),
    ),
    Data((32, 32), "L", (0.1307,), (0.3081,), labels=(Label("plane"), Label("automobile", ("car",)))),
    Protocol("batch"),
    Statistical(None, Probe("hash-1", ((2, 1, 32, 32),), (0.11, 0.93), 1e-3, "value:sha256:" + "0" * 64)),
)
BLUEPRINT = Blueprint(
    "timm", "timm 1.0.31", "resnet20_cifar", {"in_chans": 1}, "layer2", "extractor", "fx", (32, 32)
)


@pytest.fixture
def manifest_of() -> Callable[..., Manifest]:
    """Return a manifest; keywords replace its fields."""

    def build(payload: Payload, **changes: Any) -> Manifest:
        plain = Manifest(kind="extractor", blueprint=BLUEPRINT, payload=payload, contract=CONTRACT)
        return attrs.evolve(plain, **changes)

    return build


@pytest.fixture
def publish(put: Callable[..., Payload], manifest_of: Callable[..., Manifest]) -> Callable[..., Any]:
    """Publish a component whose weights differ with ``value``; return its reference."""

    def publish_one(
        store: Store, name: str, value: int = 0, version: str | None = None, **changes: Any
    ) -> Any:
        return store.publish(name, manifest_of(put(store, value), **changes), version=version)

    return publish_one


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.new("alice")


@pytest.fixture
def trusted(key: SigningKey) -> Trusted:
    return Trusted({key.public.id: key.public}, source="the test's folder")


@pytest.fixture
def source(tmp_path: Path, publish: Callable[..., Any]) -> Store:
    """A registry with a little of everything, to be moved elsewhere."""
    return fill(Store.init(tmp_path / "source"), publish)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[str]:
    """An address in this process's memory, like an object store: no folders, no rename, files appear whole."""
    system = fsspec.filesystem("memory")
    yield f"memory://remotes/{tmp_path.name}"
    if system.exists("/remotes"):
        system.rm("/remotes", recursive=True)
