"""A contract says nothing that its module does not show: derived again from what was loaded, it is the same bytes."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.adapters.blueprints import structural
from compatkit.components.probes import probe_of
from compatkit.components.verification import normalization_of
from compatkit.contracts.channels import channel_statistics
from compatkit.contracts.contract import Contract, Protocol, Statistical
from compatkit.contracts.labels import label
from compatkit.contracts.manifest import Manifest, Payload, to_bytes
from compatkit.evaluation.feature_statistics import Moments, feature_moments
from compatkit.foundation.codec import digest
from compatkit.registry.weights.tensorfile import serialize, state_digest


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


TASKS = [
    ck.Task("left", data_set("left", seed=0), "resnet8_cifar", "layer2", size=(16, 16)),
    ck.Task("right", data_set("right", seed=1), "resnet8_cifar", "layer2", size=(16, 16)),
]
WHOLE = ck.Task("whole", data_set("left", seed=0), "resnet8_cifar", "forward_features", size=(16, 16))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    made = ck.Registry.init(tmp_path_factory.mktemp("round") / "parts")
    made.publish(quick(steps=2).fit(TASKS, ["dcc"]), prefix="digits")
    made.publish(quick(steps=2).fit([WHOLE]), prefix="canonical")
    return made


def derived(manifest: Manifest, module: torch.nn.Module, moments: tuple[Moments, ...]) -> Manifest:
    """Derive everything that a module shows; what no module shows (training, parents, anchors) is taken as recorded."""
    blueprint, stated = manifest.blueprint, manifest.contract
    ports = None if blueprint.side == "extractor" else stated.structural.inputs
    shape = structural(module, blueprint, feature_ports=ports)
    state = module.state_dict()
    stored = serialize(state)
    payload = Payload(
        attrs.evolve(manifest.payload.file, blob=digest(stored), bytes=len(stored)),
        state_digest(state),
        len(state),
        sum(parameter.numel() for parameter in module.parameters()),
    )
    names = stated.data.labels and tuple(label(entry.name) for entry in stated.data.labels)
    contract = Contract(
        shape,
        attrs.evolve(stated.data, labels=names),
        Protocol(normalization_of(module), stated.protocol.anchors),
        Statistical(tuple(moment.statistics() for moment in moments), probe_of(module, shape, blueprint)),
    )
    return attrs.evolve(manifest, payload=payload, contract=contract)


def moments_of(registry: ck.Registry, extractor: str, task: ck.Task) -> tuple[Moments, ...]:
    contract = registry.store.manifest(extractor).contract
    return feature_moments(
        registry.load(extractor), contract.structural.outputs, task.data.train, contract.data
    )


@pytest.mark.parametrize(
    ("name", "own", "tasks"),
    [
        ("digits/left.extractor", ["digits/left.extractor"], TASKS[:1]),
        ("digits/right.head", ["digits/right.extractor"], TASKS[1:]),
        ("digits/shared.dcc", ["digits/left.extractor", "digits/right.extractor"], TASKS),
        ("canonical/whole.extractor", ["canonical/whole.extractor"], [WHOLE]),
        ("canonical/whole.head", ["canonical/whole.extractor"], [WHOLE]),
    ],
)
def test_published_loaded_and_derived_again_a_manifest_has_the_same_bytes(
    registry: ck.Registry, name: str, own: list[str], tasks: list[ck.Task]
) -> None:
    manifest = registry.store.manifest(name)
    moments = moments_of(registry, own[0], tasks[0])
    for extractor, task in zip(own[1:], tasks[1:], strict=True):
        pairs = zip(moments, moments_of(registry, extractor, task), strict=True)
        moments = tuple(mine.merged(theirs) for mine, theirs in pairs)
    again = derived(manifest, registry.load(name), moments)
    assert again == manifest
    assert to_bytes(again) == to_bytes(manifest)
    assert digest(to_bytes(again)) == registry.store.resolve(name).digest


def test_what_is_registered_again_is_the_same_component(registry: ck.Registry) -> None:
    for name in ("digits/left.extractor", "digits/left.head", "digits/shared.dcc", "canonical/whole.head"):
        state = registry.store.load_state(registry.store.manifest(name))
        assert registry.publish(registry.store.manifest(name), name, state=state) == f"{name}@1.0.0"


def test_both_sides_of_a_seam_state_the_same_features(registry: ck.Registry) -> None:
    left, head = (registry.store.manifest(f"digits/left.{side}").contract for side in ("extractor", "head"))
    assert left.statistical.features == head.statistical.features
    (stated,) = left.statistical.features or ()
    assert stated.samples == len(TASKS[0].data.train) and stated.per_channel is not None
    means, stds = channel_statistics(registry.store.read_blob(stated.per_channel["blob"]))
    assert len(means) == left.structural.outputs[0].channels == stated.per_channel["bytes"] / 8
    assert float(means.mean()) == pytest.approx(stated.mean, rel=1e-5) and (stds >= 0).all()
    (shared,) = registry.store.manifest("digits/shared.dcc").contract.statistical.features or ()
    assert shared.samples == 2 * stated.samples
