"""Registries to be moved, remotes that only this process sees, and faults in their file systems."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from compatkit.contracts.manifest import Parent, function_digest
from compatkit.foundation.codec import dumps
from compatkit.registry.copy.report import TransferReport
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.policies import Images, Policy
from compatkit.registry.remotes import files
from compatkit.registry.remotes.pushpull import pull, push
from compatkit.registry.signing.envelope import Envelope, Statement
from compatkit.registry.store import Store

HEAD, EXTRACTOR = "digits/mnist.head", "digits/mnist.extractor"
FOLDERS = ("blobs", "refs", "evidence", "signatures", "withdrawals")


def fill(store: Store, publish: Callable[..., Any]) -> Store:
    """Publish an extractor and two versions of its head, one withdrawn, with all that points at them."""
    run = store.put_blob(dumps({"run": "digits"}))
    edge = {"blob": run.blob, "bytes": run.bytes}
    extractor = publish(store, EXTRACTOR, 1, training={"run": edge})
    parents = (Parent("trained_with", extractor.digest),)
    for value in (2, 3):
        head = publish(store, HEAD, value, training={"run": edge}, parents=parents, kind="head")
    functions = [function_digest(store.manifest(item)) for item in (extractor, head)]
    store.evidence.record(*functions, {"metric": "accuracy"}, dumps({"accuracy": 0.9}))
    store.set_alias(HEAD, "prod", "1.0.0")
    store.set_alias(HEAD, "prod", "2.0.0")
    store.set_alias(HEAD, "old", "1.0.0")
    store.set_alias(HEAD, "old", None)
    store.withdraw(HEAD, "1.0.0", "trained on the test set")
    store.signatures.add(head.digest, signature(head.digest))
    deciding = Images("mnist/test", f"data:sha256:{'a' * 64}")
    store.set_policy("digits/*", Policy(scope="digits/*", mode="backward", data=deciding))
    return store


def signature(digest: str) -> bytes:
    """Return a signature of a manifest by its form, which nobody made."""
    signer = f"ed25519:{'ab' * 32}"
    result = Statement(digest, None, signer, datetime(2026, 6, 1, tzinfo=UTC), None)
    return Envelope(result.to_bytes(), signer, bytes(64)).to_bytes()


def write(store: Store, path: str, data: bytes) -> Path:
    """Write a file of a registry by hand, or over one."""
    file = store.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists():
        file.chmod(0o644)
    file.write_bytes(data)
    return file


def content(root: Path) -> dict[str, bytes]:
    """Return every file of a registry that travels, by its path: ``tmp`` and the like, and its own id, do not."""
    result = (path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in result}


def export(store: Store, folder: Path, patterns: Iterable[str] = ("*",)) -> TransferReport:
    """Write components into an OCI image layout."""
    return push(store, f"oci-layout://{folder}", patterns)


def import_layout(
    store: Store,
    folder: Path,
    patterns: Iterable[str] | None = None,
    *,
    settings: TransferSettings | None = None,
) -> TransferReport:
    """Copy components from an OCI image layout."""
    return pull(store, f"oci-layout://{folder}", patterns, settings=settings)


class Fault:
    """Counts the calls to a remote's file system, and fails from the ``at``-th on, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int | None = None) -> None:
        self.at, self.calls = at, list[tuple[str, str]]()
        monkeypatch.setattr(files, "step", self)

    def __call__(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        if self.at is not None and len(self.calls) > self.at:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), path)

    def mend(self) -> None:
        """Let everything work again, and count anew."""
        self.at = None
        self.calls.clear()

    def written(self, operations: tuple[str, ...] = ("put", "upload", "create")) -> list[str]:
        """Return the paths that were written."""
        return [path for operation, path in self.calls if operation in operations]
