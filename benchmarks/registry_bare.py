"""Floors for weights: minimal code to write, read and build, without checks, messages or rollback."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from compatkit_plugins.networks import NETWORKS
from compatkit_plugins.networks import build as build_own


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a file and sync it to the disk."""
    with open(path, "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def hashed(path: Path) -> str:
    """Return the sha256 of a memory-mapped file."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return hashlib.sha256(mapped).hexdigest()


def publish_best(folder: Path, state: Mapping[str, Tensor]) -> str:
    """Save tensors, hash the file during the fsync, link it to its digest: the minimum of a durable, verified write."""
    draft = folder / "draft"
    save_file(dict(state), draft)
    descriptor = os.open(draft, os.O_RDONLY)
    with ThreadPoolExecutor(1) as executor:
        digest = executor.submit(hashed, draft)
        os.fsync(descriptor)
        name = digest.result()
    os.close(descriptor)
    os.link(draft, folder / name)
    sync_folder(folder)
    os.unlink(draft)
    return name


def publish_small(root: Path, name: str, state: Mapping[str, Tensor], document: dict[str, Any]) -> str:
    """Write weights, manifest and version, each hashed, synced and linked, and sync new folders."""
    weights = _write_blob(root, save(dict(state)))
    document["payload"]["file"]["blob"] = f"sha256:{weights}"
    digest = _write_blob(root, json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
    folder = root / "refs" / name / "@versions"
    _make_folder(folder)
    _link(root / "draft", folder / "1.0.0", f"sha256:{digest}\n".encode())
    return weights


def _write_blob(root: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    _make_folder(root / "blobs" / name[:2])
    _link(root / "draft", root / "blobs" / name[:2] / name, data)
    return name


def _make_folder(folder: Path) -> None:
    """Make a folder and its missing parents durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir()
        sync_folder(folder.parent)


def _link(draft: Path, target: Path, data: bytes) -> None:
    write_synced(draft, data)
    os.link(draft, target)
    sync_folder(target.parent)
    os.unlink(draft)


def create_model(model: str, **kwargs: Any) -> nn.Module:
    """Build a network of timm, or one of compatkit's own."""
    return (build_own if model in NETWORKS else timm.create_model)(model, **kwargs)


def build(
    path: Path, model: str, kwargs: Mapping[str, Any], *, initialized: bool = False, device: str = "cpu"
) -> nn.Module:
    """Build a network on the meta device and assign memory-mapped weights.

    Args:
        path: Path of the weights.
        model: Model of timm.
        kwargs: Keyword arguments of the model.
        initialized: Whether the functions of ``torch.nn.init`` run, which compute nothing on the meta device but take
            several times as long as everything else.
        device: Device that the weights are read to.

    Returns:
        Network in eval mode.
    """
    with torch.device("meta"), nullcontext() if initialized else _without_initialization():
        module = create_model(model, **kwargs)
    module.load_state_dict(load_file(path, device=device), assign=True)
    return module.eval()


@contextmanager
def _without_initialization() -> Iterator[None]:
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    functions = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *args, **kwargs: tensor)
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(nn.init, name, function)


def touch(module: nn.Module) -> float:
    """Read all weights and buffers; return their sum."""
    state = module.state_dict()
    return sum(float(state[name].sum()) for name in sorted(state))
