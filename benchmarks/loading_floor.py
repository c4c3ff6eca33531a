"""Rows of the floor about the first load of a part, hashed and probed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import registry_bare as bare
from contest import Contestant, compete, ratios
from registry_floor import scratch
from registry_settings import Settings
from safetensors.torch import load_file

from compatkit.components.registry import Registry
from compatkit.registry.local_cache import FILE

LARGE, SMALL = ("resnet50", "layer4"), ("resnet20_cifar", "layer3")


def large(rounds: int) -> list[float]:
    """Return the processor time of a first load of 94 MB by that of hash, timm on meta, load, and touch."""
    return _loaded(rounds, LARGE, known=False, rival=_rival)


def large_later(rounds: int, *, initialized: bool) -> list[float]:
    """Return the processor time of a later load of 94 MB by that of timm on meta, load, and touch.

    Args:
        rounds: Number of rounds.
        initialized: Whether timm's initialization runs on meta, where it computes nothing.
    """

    def rival(file: Path, network: str) -> float:
        return bare.touch(bare.build(file, network, {"num_classes": 0}, initialized=initialized))

    return _loaded(rounds, LARGE, known=True, rival=rival)


def small_again(rounds: int) -> list[float]:
    """Return the processor time of a later load of a small part, in one process, by that of the whole network.

    The network is built as usual, and gets the same weights.
    """

    def rival(file: Path, network: str) -> float:
        module = bare.create_model(network, num_classes=0)
        module.load_state_dict(load_file(file))
        return bare.touch(module.eval())

    return _loaded(rounds, SMALL, known=True, rival=rival, calls=10)


def _loaded(
    rounds: int, part_of: tuple[str, str], *, known: bool, rival: Callable[[Path, str], float], calls: int = 1
) -> list[float]:
    from registry_weights import publish_extractor

    with scratch() as folder:
        part = publish_extractor(Settings(folder, 1, 0, 1, *part_of), *part_of)

        def forget() -> None:
            if not known:
                (part.store.local_cache.folder / FILE).unlink(missing_ok=True)

        contestants = {
            "rival": Contestant(lambda: rival(part.file, part_of[0]), check=part.check, calls=calls),
            "ours": Contestant(lambda: _ours(part.store.root, part.name), forget, part.check, calls),
        }
        return ratios(compete(contestants, rounds, 0), "ours", "rival", processor=True)


def small(rounds: int, *, known: bool) -> list[float]:
    """Return the processor time of the first load of a small part in a new process, by the rival's in another.

    Both have imported their libraries before.

    Args:
        rounds: Number of rounds.
        known: Whether an earlier process has loaded the part.
    """
    from registry_weights import publish_extractor

    with scratch() as folder:
        part = publish_extractor(Settings(folder, 1, 0, 1, *SMALL), *SMALL)
        cache = part.store.local_cache.folder / FILE
        values: list[float] = []
        for number in range(rounds + 1):
            rival = _in_a_new_process("rival", str(part.file), SMALL[0])
            if not known:
                cache.unlink(missing_ok=True)
            ours = _in_a_new_process("ours", str(part.store.root), part.name)
            if number:  # the first is to warm up
                values.append(ours / rival)
        return values


def _ours(root: str | Path, name: str) -> float:
    return bare.touch(Registry.open(root).load(name))


def _rival(file: str | Path, network: str) -> float:
    bare.hashed(Path(file))
    return bare.touch(bare.build(Path(file), network, {"num_classes": 0}, initialized=True))


def _in_a_new_process(*words: str) -> float:
    # compiled code is kept, as it is where packages are installed
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = f"{os.environ['COMPATKIT_CACHE']}-code"
    process = subprocess.run(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, env=environment, check=True
    )
    return json.loads(process.stdout)


if __name__ == "__main__":
    work: Callable[..., Any] = {"ours": _ours, "rival": _rival}[sys.argv[1]]
    begun = time.process_time()
    work(*sys.argv[2:])
    print(time.process_time() - begun)
