"""A network of 1 MB: here the fixed costs count, so the gates are milliseconds above bare code that does the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from itertools import count

import attrs
import registry_bare as bare
import registry_rivals as rivals
from registry_measuring import Contestant, Gate, Row, compete, expect, lines, say
from registry_settings import Given
from registry_weights import Kept, kept
from safetensors.torch import load_file, save
from torch import Tensor

from compatkit.adapters.blueprints import build
from compatkit.components.registry import Registry
from compatkit.contracts.manifest import to_bytes
from compatkit.registry.store import Store

NETWORK, SPLIT = "resnet20_cifar", "layer3"
ROUNDS = 5
"""Times as many rounds as for large networks; one takes milliseconds."""
ABOVE = Gate(extra=0.0005)


def small(given: Given) -> list[str]:
    """Measure loading and publishing of a small network."""
    part = kept(given, NETWORK, SPLIT)
    size = f"{part.megabytes:.1f} MB"
    return [*_loading(given, part, size), *_publishing(given, part, size)]


def _loading(given: Given, part: Kept, size: str) -> list[str]:
    blueprint, root = part.manifest.blueprint, part.store.root
    opened = Registry.open(root)

    def unshared() -> float:
        return bare.touch(build(blueprint, state=load_file(part.file)).eval())

    def shared() -> float:
        return bare.touch(build(blueprint, state=load_file(part.file), share=True).eval())

    copied, mapped = "compatkit's build(load_file) + touch", "the same, tensors not copied (share=True)"
    contestants = {
        copied: Contestant(unshared, check=part.check),
        mapped: Contestant(shared, check=part.check),
        "ours": Contestant(lambda: bare.touch(opened.load(part.name)), check=part.check),
        "anew": Contestant(lambda: bare.touch(Registry.open(root).load(part.name)), check=part.check),
        **rivals.loads(part, given.folder),
    }
    say(f"loading {size}")
    times = compete(contestants, ROUNDS * given.rounds, given.seed)
    others = [label for label in contestants if label not in (copied, mapped, "ours", "anew")]
    rows = [
        Row(f"later load and build of {size}", copied, "ours", ABOVE, others),
        Row("the same, beside a build that shares the tensors, as ours does", mapped, "ours", ABOVE),
        Row("the same, in a registry that is opened anew", mapped, "anew"),
    ]
    return lines(rows, times)


def _publishing(given: Given, part: Kept, size: str) -> list[str]:
    module, root = copy.deepcopy(part.module), given.folder / "small"
    state, numbers = module.state_dict(), count(1)
    first = next(one for one in state.values() if one.is_floating_point())
    store = Store.init(root / "parts")
    document = json.loads(to_bytes(part.manifest))
    names = [""]

    def fresh() -> None:
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
        sequence: Contestant(lambda: bare.publish_small(root / "bare", names[0], state, document), fresh),
        "ours": Contestant(ours, fresh, check),
        "HF save_pretrained": rivals.hf_save(module, root, fresh),
        **rivals.mlflow_publish(module, given.folder / "mlflow", fresh),
    }
    (root / "bare").mkdir()
    say(f"publishing {size}")
    times = compete(contestants, ROUNDS * given.rounds, given.seed)
    others = [label for label in contestants if label not in (sequence, "ours")]
    return lines([Row(f"publish {size}, durable and hashed", sequence, "ours", ABOVE, others)], times)


def _name(state: Mapping[str, Tensor]) -> str:
    return next(name for name, one in state.items() if one.is_floating_point())
