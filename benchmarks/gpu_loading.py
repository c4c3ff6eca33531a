"""Loading of 94 MB straight to a GPU: beside timm on the meta device, and beside the transfer of the bytes alone."""

from __future__ import annotations

import mmap
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import registry_bare as bare
import torch
from contest import Contestant, compete, ratios
from gpu_size import FULL, Size
from registry_settings import Settings
from registry_weights import PublishedExtractor, publish_extractor
from torch import Tensor, nn

from compatkit.components.registry import Registry
from compatkit.registry.local_cache import FILE


@contextmanager
def published(size: Size) -> Iterator[PublishedExtractor]:
    """Publish a ResNet-50, or a small network, in a registry of its own."""
    network, cut = size.of(("resnet50", "layer4"), ("resnet20_cifar", "layer3"))
    before = os.environ.get("COMPATKIT_CACHE")
    with tempfile.TemporaryDirectory(prefix="loading-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        try:
            yield publish_extractor(Settings(Path(folder), 1, 0, 0, network, cut), network, cut)
        finally:
            os.environ.pop("COMPATKIT_CACHE")
            os.environ.update({} if before is None else {"COMPATKIT_CACHE": before})


def total(module: nn.Module) -> float:
    """Read all weights and buffers on their device; return their sum, read once."""
    state = module.state_dict()
    return float(torch.stack([state[name].sum(dtype=torch.float64) for name in sorted(state)]).sum())


def moved(path: Path, device: str) -> Tensor:
    """Return the bytes of a file on the device."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the bytes cannot be written, and are not
            mapped_bytes = torch.frombuffer(mapped, dtype=torch.uint8)
        there = mapped_bytes.to(device, copy=True)
        del mapped_bytes
    return there


def load(rounds: int, size: Size = FULL, *, first: bool, rival: str) -> list[float]:
    """Return how many times as long loading to the device takes as a rival, in each round.

    Args:
        rounds: Number of rounds.
        size: Device and size.
        first: Whether nothing is known of the component, so that it is hashed and probed.
        rival: ``"timm"``: built on meta, ``load_file`` to the device, assigned; hashed before, on a first load.
            ``"bytes"``: the file's bytes, copied to the device.
    """
    with published(size) as part:
        root, memory = part.store.root, part.store.local_cache.folder / FILE
        model = part.manifest.blueprint.model

        def ours() -> float:
            return total(Registry.open(root).load(part.name).to(size.device))

        def timm() -> float:
            if first:
                bare.hashed(part.file)
            return total(bare.build(part.file, model, part.kwargs, device=size.device))

        def copied() -> float:
            return float(moved(part.file, size.device).sum())

        def forget() -> None:
            if first:
                memory.unlink(missing_ok=True)
            size.wait()

        floors: dict[str, Callable[[], float]] = {"timm": timm, "bytes": copied}
        contestants = {
            "ours": Contestant(ours, forget, part.check),
            rival: Contestant(floors[rival], size.wait, part.check if rival == "timm" else None),
        }
        return ratios(compete(contestants, rounds, size.seed), "ours", rival)
