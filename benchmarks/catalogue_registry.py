"""Registry of many families of parts for the catalogue, written as plain files: publishing each would take an hour.

A family is two extractors trained together on two data sets, their heads, the shared auxiliary head and a
recombination, as a run of the demo publishes them. Every fourth family has a second version of its extractors; one in
forty is withdrawn. Extractors of every other family were measured with the heads of their own and of the family before.
"""

from __future__ import annotations

import hashlib
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs

from compatkit.contracts.contract import (
    Anchor,
    Blueprint,
    Contract,
    Data,
    Label,
    Port,
    Probe,
    Protocol,
    Statistical,
    Structural,
)
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.grades import Grade
from compatkit.contracts.kinds import Kind
from compatkit.contracts.manifest import (
    About,
    Edge,
    Manifest,
    Parent,
    Payload,
    function_digest,
    manifest_digest,
    to_bytes,
)
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.evaluation.records import record
from compatkit.foundation.codec import dumps
from compatkit.registry.evidence import key_of
from compatkit.registry.evidence import to_bytes as result_bytes
from compatkit.registry.policies import Images, Policy
from compatkit.registry.store import Store

START = datetime(2025, 1, 1, 8, tzinfo=UTC)
TEAMS = ("vision", "digits", "medical", "satellite", "retail", "robots", "archive", "field")
NETWORKS = (
    ("resnet18", "layer3", 256),
    ("resnet50", "layer3", 1024),
    ("resnet20_cifar", "layer2", 32),
    ("mobilenetv3_large_100", "blocks.4", 112),
    ("vit_small_patch16_224", "blocks.8", 384),
    ("convnext_tiny", "stages.2", 384),
)
SETS = ("mnist", "usps", "cifar10", "svhn", "flowers102", "pets", "eurosat", "food101")
WORDS = (
    "daylight",
    "night",
    "rain",
    "scanned",
    "hand-held",
    "frozen",
    "calibrated",
    "distilled",
    "small",
    "baseline",
)
PER_FAMILY = 6
"""Names of a family: two extractors, two heads, the shared head, a recombination."""


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@attrs.define(eq=False)
class _Writer:
    """Writes blobs and versions as the registry does, without its checks and syncs."""

    store: Store
    random: random.Random
    count: int = 0
    blobs: set[str] = attrs.field(factory=set)

    def blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._file(f"blobs/sha256/{digest[:2]}/{digest}", data)
        return f"sha256:{digest}"

    def publish(self, name: str, version: str, manifest: Manifest) -> str:
        digest = self.blob(to_bytes(manifest))
        label = f"{name}@{version}"
        self.count += 1
        time = (START + timedelta(minutes=37 * self.count)).isoformat(timespec="seconds")
        who = self.random.choice(("alice", "bob", "carol", "ci"))
        fields = {"digest": digest, "time": time, "by": who, "commit": _hash(who + time)[7:47]}
        self._file(f"refs/{name}/@published/{version}", dumps(fields))
        self._file(f"refs/{name}/@versions/{version}", f"{digest} {label}\n".encode())
        return digest

    def measure(self, extractor: Manifest, head: Manifest, data: str, *, own: bool) -> None:
        count, bound = 1000, 0.9 + 0.09 * self.random.random()
        accuracy = bound if own else bound * self.random.choice((1.0, 0.95, 0.85, 0.55, 0.12))
        grade: Grade = "perfect" if accuracy > bound - 0.01 else "compatible" if accuracy > 0.5 else "chance"
        figures = [
            Figure(
                round(value * count) / count,
                round(value * count),
                count,
                max(0.0, value - 0.02),
                min(1.0, value + 0.02),
            )
            for value in (accuracy, bound)
        ]
        images = ImageFacts(f"{data}/test", "data:" + _hash(f"{data}/test"), count)
        settings = {
            **Conditions("batch", 256, 0, "float32").settings(images, batch_norm=True, bound=""),
            "own": own,
        }
        names = tuple(label.name for label in head.contract.data.labels or ())
        cell = Cell(
            "e",
            "h",
            "direct",
            "shared-head",
            grade,
            figures[0],
            figures[0],
            0.1,
            figures[1],
            None,
            None,
            names,
        )
        values = record(attrs.evolve(cell, settings=settings))
        functions = function_digest(extractor), function_digest(head)
        document = result_bytes(*functions, **values, measured_as={})
        digest = self.blob(document)
        hexadecimal = [function.rpartition(":")[2] for function in functions]
        folder = "/".join((*hexadecimal, key_of(values["conditions"])))
        self._file(f"evidence/{folder}/{digest[7:]}", f"{digest}\n".encode())

    def _file(self, path: str, data: bytes) -> None:
        target = self.store.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(data)


def build(root: Path, names: int) -> Store:
    """Write a registry.

    Args:
        root: New folder.
        names: Number of names, about.
    """
    writer = _Writer(Store.init(root), random.Random(0))
    before: dict[str, Manifest] | None = None
    for family in range(-(-names // PER_FAMILY)):
        before = _family(writer, family, before)
    store = writer.store
    for family in range(0, min(200, names // PER_FAMILY), 20):
        store.set_alias(f"{_prefix(family)}/{_sets(family)[0]}.head", "prod", "1.0.0")
    for family in range(1, min(4000, names // PER_FAMILY), 40):
        store.withdraw(f"{_prefix(family)}/{_sets(family)[0]}.head", "1.0.0", "trained on the test images")
    deciding = Images("mnist/test", "data:" + _hash("mnist/test"))
    scope = f"{_prefix(0)}/*.extractor"
    store.set_policy(scope, Policy(scope=scope, mode="backward", data=deciding, tolerance=0.03))
    os.sync()
    return store


def _prefix(family: int) -> str:
    return f"{TEAMS[family % len(TEAMS)]}/run{family:04d}"


def _sets(family: int) -> tuple[str, str]:
    return SETS[family % len(SETS)], SETS[(family + 1 + family // len(SETS) % 3) % len(SETS)]


def _family(writer: _Writer, family: int, before: dict[str, Manifest] | None) -> dict[str, Manifest]:
    network, prefix, random_ = NETWORKS[family % len(NETWORKS)], _prefix(family), writer.random
    shared = Anchor("auxiliary_head", "tensors:" + _hash(f"{family} shared"), "dcc")
    digests: dict[str, str] = {}
    parts: dict[str, Manifest] = {}
    for data in _sets(family):
        extractor = _part("extractor", network, data, f"{family} {data} 1", (shared,), random_)
        name = f"{prefix}/{data}.extractor"
        digests[name], parts[name] = writer.publish(name, "1.0.0", extractor), extractor
        head = _part("head", network, data, f"{family} {data} head", (shared,), random_)
        head = attrs.evolve(head, parents=(Parent("trained_with", digests[name]),))
        other = f"{prefix}/{data}.head"
        digests[other], parts[other] = writer.publish(other, "1.0.0", head), head
        if family % 4 == 0:
            second = _part("extractor", network, data, f"{family} {data} 2", (shared,), random_)
            second = attrs.evolve(second, parents=(Parent("initialised_from", digests[name]),))
            digests[name], parts[name] = writer.publish(name, "1.1.0", second), second
    anchor = _part("auxiliary_head", network, _sets(family)[0], f"{family} dcc", (), random_)
    writer.publish(f"{prefix}/shared.dcc", "1.0.0", anchor)
    extractor, head = f"{prefix}/{_sets(family)[0]}.extractor", f"{prefix}/{_sets(family)[1]}.head"
    mixed = _part("recombination", network, _sets(family)[1], f"{family} mixed", (shared,), random_)
    parents = Parent("extractor", digests[extractor]), Parent("head", digests[head])
    writer.publish(f"{prefix}/mixed", "1.0.0", attrs.evolve(mixed, parents=parents))
    if before is not None and family % 2:
        every = {**parts, **before}
        for left in (name for name in parts if name.endswith(".extractor")):
            for right in (name for name in every if name.endswith(".head")):
                own = any(parent.component == manifest_digest(every[left]) for parent in every[right].parents)
                writer.measure(every[left], every[right], left.rpartition("/")[2].partition(".")[0], own=own)
    return parts


def _part(
    kind: Kind,
    network: tuple[str, str, int],
    data: str,
    seed: str,
    anchors: tuple[Anchor, ...],
    random_: random.Random,
) -> Manifest:
    model, cut, width = network
    sides = {"extractor": "extractor", "recombination": "recombination"}
    image = Port("image", ("N", 3, "H", "W"))
    features = Port("features", ("N", width, "H", "W"), measured={"32x32": (8, 8)}, range="nonnegative")
    logits = Port("logits", ("N", 10), layout="NC")
    ports = {"extractor": ((image,), (features,)), "recombination": ((image,), (logits,))}
    takes, gives = ports.get(kind, ((features,), (logits,)))
    labels = None if kind == "extractor" else tuple(Label(f"{data} {number}") for number in range(10))
    size = 32 if "cifar" in model else 224
    contract = Contract(
        Structural(takes, gives),
        Data((size, size), "RGB", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), labels=labels),
        Protocol("batch", anchors),
        Statistical(
            None, Probe("hash-1", ((2, 3, size, size),), (0.5, 0.25), 1e-3, "value:" + _hash(f"{seed} probe"))
        ),
    )
    words = random_.sample(WORDS, 2)
    about = About(
        title=f"{data} on {model}, {' '.join(words)}",
        description=f"Trained on {data} with the classes of its own.\nPublished by a run of {seed}.",
        tags={
            "dataset": data,
            "backbone": model,
            "condition": words[0],
            "project": f"p{random_.randrange(40)}",
        },
        license=random_.choice(("MIT", "Apache-2.0", "CC-BY-4.0")),
    )
    blueprint = Blueprint(
        "timm",
        "timm 1.0.31",
        model,
        {},
        cut,
        sides.get(kind, "head"),
        "fx",
        (size, size),  # type: ignore[arg-type]
    )
    parameters = random_.randrange(10_000, 30_000_000)
    payload = Payload(Edge(_hash(f"{seed} file"), 4 * parameters), "tensors:" + _hash(seed), 60, parameters)
    training = {"steps": 2000, "seed": 0, "data": {"name": f"{data}/train"}}
    return Manifest(
        kind=kind, blueprint=blueprint, payload=payload, contract=contract, about=about, training=training
    )
