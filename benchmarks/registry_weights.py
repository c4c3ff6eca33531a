"""Publishing and loading of 100 MB: the cost of durability, hashes and the probe above bare code."""

from __future__ import annotations

import copy
import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import registry_bare as bare
import registry_rivals as rivals
import torch
from contest import Contestant, Gate, Row, compete, expect, lines, say
from registry_settings import Settings
from safetensors.torch import save_file
from torch import Tensor, nn

from compatkit.adapters.cutting.signals import signal
from compatkit.components.registry import Registry
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.manifest import Manifest
from compatkit.registry.local_cache import FILE
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import serialize

CLOSE = 1e-4
"""Allowed relative difference of two sums of the same numbers in different order."""
FASTER = Gate(1, text="faster")
SETTLED = 2.5
"""Seconds until the modification times of files identify their contents."""


@attrs.frozen(eq=False)
class PublishedExtractor:
    """Extractor in a registry, and the same weights as a bare file and as a network of timm.

    Attributes:
        kwargs: Arguments of timm for a network that is only the extractor.
        total: Sum of the weights.
    """

    store: Store
    name: str
    manifest: Manifest
    file: Path
    module: nn.Module
    kwargs: Mapping[str, Any]
    total: float

    @property
    def megabytes(self) -> float:
        """Return the size of the weights in MB."""
        return self.manifest.payload.file.bytes / 1e6

    def check(self, total: float) -> None:
        """Check the sum of the weights of a loaded network."""
        expect("the sum of the weights", abs(total - self.total) <= CLOSE * abs(self.total), True)


@cache
def publish_extractor(settings: Settings, network: str, cut: str) -> PublishedExtractor:
    """Cut a network and publish its parts; return the extractor."""
    say(f"cutting {network} at {cut} and publishing it")
    root = settings.folder / f"parts-{network}"
    registry, parts = Registry.init(root), split(network, cut)
    name = publish_split(registry.store, parts, "zoo/net")["extractor"]
    state = {key: value.clone() for key, value in parts["extractor"].module.state_dict().items()}
    file = settings.folder / f"{network}.safetensors"
    kwargs: dict[str, Any] = {"num_classes": 0}
    save_file(state, file)
    module = bare.create_model(network, **kwargs)
    module.load_state_dict(state)
    time.sleep(SETTLED)
    store = registry.store
    return PublishedExtractor(
        store, name, store.manifest(name), file, module.eval(), kwargs, bare.touch(module)
    )


def publish_contestants(part: PublishedExtractor, folder: Path) -> dict[str, Contestant]:
    """Return ``"bare best"`` and ``"ours"``, which write weights into an emptied folder, other ones each time."""
    state = copy.deepcopy(part.module).state_dict()
    first, published = state[_first(state)], [0]

    def next_version() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        Store.init(folder / "parts")
        os.sync()
        published[0] += 1
        first.view(-1)[0] = published[0]

    def check_blob(store: Store) -> None:
        stored = store.load_state(store.manifest("bench/net@1.0.0"), verify="always")
        expect("the first weight", float(stored[_first(state)].view(-1)[0]), float(published[0]))

    return {
        "bare best": Contestant(lambda: bare.publish_best(folder, state), next_version),
        "ours": Contestant(lambda: _published(folder, state, part.manifest), next_version, check_blob),
    }


def publish(settings: Settings) -> list[str]:
    """Measure publishing."""
    part = publish_extractor(settings, settings.network, settings.cut)
    folder = settings.folder / "publish"
    data = serialize(part.module.state_dict())
    ours = publish_contestants(part, folder)
    next_version = ours["ours"].prepare
    assert next_version is not None

    size = f"{len(data) / 1e6:.0f} MB"
    floor, best = f"write + fsync of the same {size}", "bare best"
    contestants = {
        floor: Contestant(lambda: bare.write_synced(folder / "x", data), next_version),
        **ours,
        "HF save_pretrained (neither fsync nor hash)": rivals.hf_save(part.module, folder, next_version),
        **rivals.mlflow_publish(part.module, settings.folder / "mlflow", next_version),
    }
    say(f"publishing {size}")
    times = compete(contestants, settings.rounds, settings.seed)
    others = [label for label in contestants if label not in (floor, "ours")]
    operation = f"publish {size}, durable and hashed (put_state and publish)"
    best_label = f"{best} (save_file, sha256 of the map beside fsync, link, folder fsync)"
    times[best_label] = times[best]
    rows = [
        Row(operation, floor, "ours", Gate(2.6), others),
        Row("the same, beside the bare best", best_label, "ours"),
        *(
            Row("the same, beside MLflow", label, "ours", Gate(1))
            for label in others
            if label.startswith("MLflow")
        ),
    ]
    return lines(rows, times)


def _published(folder: Path, state: Mapping[str, Tensor], manifest: Manifest) -> Store:
    store = Store.open(folder / "parts")
    payload = store.put_state(state, parameters=manifest.payload.parameters)
    store.publish("bench/net", attrs.evolve(manifest, payload=payload))
    return store


def _first(state: Mapping[str, Tensor]) -> str:
    return next(name for name, tensor in state.items() if tensor.is_floating_point())


def load(settings: Settings) -> list[str]:
    """Measure the first load, its steps, and later loads."""
    part = publish_extractor(settings, settings.network, settings.cut)
    memories = _memories(part, settings.folder / "memories")

    def remembering(memory: str) -> Any:
        return lambda: _remember(part.store, memories.get(memory))

    def ours(memory: str, verify: Any = "auto") -> Contestant:
        root = part.store.root
        work = lambda: bare.touch(Registry.open(root).load(part.name, verify=verify))  # noqa: E731
        return Contestant(work, remembering(memory), part.check)

    probe = part.manifest.contract.statistical.probe
    assert probe is not None
    image = signal(probe.shapes[0], 1)
    later = "timm on meta without initialization, load_file, assign + touch"
    plain, hash_ = "timm on meta, load_file, assign + touch", "sha256 of the map + "
    hashed = f"{hash_}{later}"
    contestants = {
        hashed: Contestant(lambda: (bare.hashed(part.file), _bare(part))[1], check=part.check),
        f"{hashed} + the probe's forward pass": Contestant(lambda: _passed(part, image), check=part.check),
        f"{hash_}{plain}": Contestant(
            lambda: (bare.hashed(part.file), _bare(part, initialized=True))[1], check=part.check
        ),
        later: Contestant(lambda: _bare(part), check=part.check),
        plain: Contestant(lambda: _bare(part, initialized=True), check=part.check),
        "nothing remembered": ours("nothing"),
        "proved before": ours("proved"),
        "hashed before": ours("hashed"),
        "later": ours("all"),
        "never": ours("nothing", "never"),
        **rivals.loads(part, settings.folder),
    }
    say(f"loading {part.megabytes:.0f} MB")
    times = compete(contestants, settings.rounds, settings.seed)
    return lines(_rows(part, (hashed, later), (f"{hash_}{plain}", plain), list(contestants)), times)


def _rows(
    part: PublishedExtractor, strict: tuple[str, str], plain: tuple[str, str], labels: list[str]
) -> list[Row]:
    hashed, later = strict
    others = [label for label in labels if label.split()[0] in ("HF", "timm.create_model", "MLflow")]
    first = f"first load and build of {part.megabytes:.0f} MB"
    later_operation = "later load and build (in a registry that is opened anew)"
    return [
        Row(f"{first}: hashed and probed, nothing remembered", plain[0], "nothing remembered", Gate(1.5)),
        Row("the same, beside the stricter floor", hashed, "nothing remembered"),
        Row(
            "the same, beside the stricter floor with a forward pass",
            f"{hashed} + the probe's forward pass",
            "nothing remembered",
        ),
        Row(f"{first}: hashed, probed before with these libraries", plain[0], "proved before", Gate(1.5)),
        Row("the same, beside the stricter floor", hashed, "proved before"),
        Row(f"{first}: probed, hashed before", plain[1], "hashed before"),
        Row('load and build, verify="never"', plain[1], "never"),
        Row(later_operation, plain[1], "later", Gate(1.5), others),
        Row("the same, beside the stricter floor", later, "later"),
        *(
            Row(f"the same, beside {label}", label, "later", None if label.startswith("MLflow") else FASTER)
            for label in others
        ),
    ]


def _bare(part: PublishedExtractor, *, initialized: bool = False) -> float:
    model = part.manifest.blueprint.model
    return bare.touch(bare.build(part.file, model, part.kwargs, initialized=initialized))


def _passed(part: PublishedExtractor, image: Tensor) -> float:
    bare.hashed(part.file)
    module = bare.build(part.file, part.manifest.blueprint.model, part.kwargs)
    with torch.no_grad():
        module(image)
    return bare.touch(module)


def _memories(part: PublishedExtractor, folder: Path) -> dict[str, Path]:
    """Return files with the machine's cache of the part: everything, without the hash, without the probe."""
    folder.mkdir(exist_ok=True)
    _remember(part.store, None)
    Registry.open(part.store.root).load(part.name)
    memories: dict[str, Path] = {}
    for name, table in (("all", None), ("proved", "verified"), ("hashed", "proved")):
        memories[name] = Path(shutil.copy(part.store.local_cache.folder / FILE, folder / name))
        connection = sqlite3.connect(memories[name])
        counts = {
            counted: connection.execute(f"SELECT count(*) FROM {counted}").fetchone()[0]
            for counted in ("verified", "proved")
        }
        expect("remembered", min(counts.values()) > 0, True)
        if table is not None:
            connection.execute(f"DELETE FROM {table}")
        connection.commit()
        connection.close()
    return memories


def _remember(store: Store, memory: Path | None) -> None:
    path = store.local_cache.folder / FILE
    path.unlink(missing_ok=True)
    if memory is not None:
        shutil.copy(memory, path)
