"""Network of 1 MB: fixed costs dominate, so the gates are milliseconds above equivalent bare code."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from itertools import count

import attrs
import registry_bare as bare
import registry_rivals as rivals
from contest import Contestant, Gate, Row, compete, expect, lines, say
from registry_settings import Settings
from registry_weights import PublishedExtractor, publish_extractor
from safetensors.torch import load_file, save
from torch import Tensor

from compatkit.adapters.blueprints import build
from compatkit.components.registry import Registry
from compatkit.contracts.manifest import to_bytes
from compatkit.registry.store import Store

NETWORK, SPLIT = "resnet20_cifar", "layer3"
ROUNDS = 5
"""Factor for the number of rounds, as a round takes milliseconds."""
ABOVE = Gate(extra=0.0005)


def small(settings: Settings) -> list[str]:
    """Measure loading and publishing of a small network."""
    part = publish_extractor(settings, NETWORK, SPLIT)
    size = f"{part.megabytes:.1f} MB"
    return [*_loading(settings, part, size), *_publishing(settings, part, size)]


def _loading(settings: Settings, part: PublishedExtractor, size: str) -> list[str]:
    blueprint, root = part.manifest.blueprint, part.store.root
    registry = Registry.open(root)

    def unshared() -> float:
        return bare.touch(build(blueprint, state=load_file(part.file)).eval())

    def shared() -> float:
        return bare.touch(build(blueprint, state=load_file(part.file), share=True).eval())

    copied, mapped = "compatkit's build(load_file) + touch", "the same, tensors not copied (share=True)"
    contestants = {
        copied: Contestant(unshared, check=part.check),
        mapped: Contestant(shared, check=part.check),
        "ours": Contestant(lambda: bare.touch(registry.load(part.name)), check=part.check),
        "anew": Contestant(lambda: bare.touch(Registry.open(root).load(part.name)), check=part.check),
        **rivals.loads(part, settings.folder),
    }
    say(f"loading {size}")
    times = compete(contestants, ROUNDS * settings.rounds, settings.seed)
    others = [label for label in contestants if label not in (copied, mapped, "ours", "anew")]
    rows = [
        Row(f"later load and build of {size}", copied, "ours", ABOVE, others),
        Row("the same, beside a build that shares the tensors, as ours does", mapped, "ours", ABOVE),
        Row("the same, in a registry that is opened anew", mapped, "anew"),
    ]
    return lines(rows, times)


def _publishing(settings: Settings, part: PublishedExtractor, size: str) -> list[str]:
    module, root = copy.deepcopy(part.module), settings.folder / "small"
    state, numbers = module.state_dict(), count(1)
    first = next(tensor for tensor in state.values() if tensor.is_floating_point())
    store = Store.init(root / "parts")
    document = json.loads(to_bytes(part.manifest))
    names = [""]

    def next_version() -> None:
        number = next(numbers)
        first.view(-1)[0], names[0] = number, f"bench/net{number}"

    def ours() -> str:
        payload = store.put_state(state, parameters=part.manifest.payload.parameters)
        store.publish(names[0], attrs.evolve(part.manifest, payload=payload))
        return payload.file.blob

    def check(blob: str) -> None:
        expect("the published weights", store.manifest(names[0]).payload.file.blob, blob)
        expect(
            "their first number",
            float(store.load_state(store.manifest(names[0]))[_name(state)].view(-1)[0]),
            float(first.view(-1)[0]),
        )

    data, plain = save(state), root / "x"
    floor, sequence = (
        f"write + fsync of {size}",
        "save, hash, write, fsync, link, folder fsync; manifest and version too",
    )
    contestants = {
        floor: Contestant(lambda: bare.write_synced(plain, data)),
        sequence: Contestant(
            lambda: bare.publish_small(root / "bare", names[0], state, document), next_version
        ),
        "ours": Contestant(ours, next_version, check),
        "HF save_pretrained": rivals.hf_save(module, root, next_version),
        **rivals.mlflow_publish(module, settings.folder / "mlflow", next_version),
    }
    (root / "bare").mkdir()
    say(f"publishing {size}")
    times = compete(contestants, ROUNDS * settings.rounds, settings.seed)
    others = [label for label in contestants if label not in (sequence, "ours")]
    return lines([Row(f"publish {size}, durable and hashed", sequence, "ours", ABOVE, others)], times)


def _name(state: Mapping[str, Tensor]) -> str:
    return next(name for name, tensor in state.items() if tensor.is_floating_point())
