"""Floors for weights: the least that writing, reading and building can mean; no check, no message, no way back."""

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
from compatkit_plugins.networks import build as own


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def hashed(path: Path) -> str:
    """Return the sha256 of a file, mapped and not read."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return hashlib.sha256(mapped).hexdigest()


def publish_best(folder: Path, state: Mapping[str, Tensor]) -> str:
    """Save tensors, hash the file beside the fsync, link it to its digest: the least that is durable and verified."""
    draft = folder / "draft"
    save_file(dict(state), draft)
    descriptor = os.open(draft, os.O_RDONLY)
    with ThreadPoolExecutor(1) as beside:
        digest = beside.submit(hashed, draft)
        os.fsync(descriptor)
        name = digest.result()
    os.close(descriptor)
    os.link(draft, folder / name)
    sync_folder(folder)
    os.unlink(draft)
    return name


def publish_small(root: Path, name: str, state: Mapping[str, Tensor], document: dict[str, Any]) -> str:
    """Write weights, manifest and version, each hashed, synced, linked, with the folders that are new."""
    weights = _place(root, save(dict(state)))
    document["payload"]["file"]["blob"] = f"sha256:{weights}"
    digest = _place(root, json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
    folder = root / "refs" / name / "@versions"
    _make(folder)
    _link(root / "draft", folder / "1.0.0", f"sha256:{digest}\n".encode())
    return weights


def _place(root: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    _make(root / "blobs" / name[:2])
    _link(root / "draft", root / "blobs" / name[:2] / name, data)
    return name


def _make(folder: Path) -> None:
    """Make a folder durably, and those above it that are not there."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir()
        sync_folder(folder.parent)


def _link(draft: Path, target: Path, data: bytes) -> None:
    write_synced(draft, data)
    os.link(draft, target)
    sync_folder(target.parent)
    os.unlink(draft)


def create_model(model: str, **kwargs: Any) -> nn.Module:
    """Build a network of timm, or one of compatkit's own."""
    return (own if model in NETWORKS else timm.create_model)(model, **kwargs)


def build(path: Path, model: str, kwargs: Mapping[str, Any], *, initialized: bool = False) -> nn.Module:
    """Build a network without numbers, and hang the mapped ones in.

    Args:
        path: Path of the weights.
        model: Model of timm.
        kwargs: For timm.
        initialized: Whether the functions of ``torch.nn.init`` run, which compute nothing on the meta device but take
            several times as long as all the rest.
    """
    with torch.device("meta"), nullcontext() if initialized else _without_initialization():
        module = create_model(model, **kwargs)
    module.load_state_dict(load_file(path), assign=True)
    return module.eval()


@contextmanager
def _without_initialization() -> Iterator[None]:
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    before = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *args, **kwargs: tensor)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(nn.init, name, function)


def touch(module: nn.Module) -> float:
    """Read every number; return their sum, the same for the same weights."""
    state = module.state_dict()
    return sum(float(state[name].sum()) for name in sorted(state))
