"""Recombinations as components: published by the digests of their parts, the same when loaded, refused when not."""

from __future__ import annotations

import json
import shutil
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from handmade import Hand
from small import data_set, quick
from torch import Tensor

import compatkit as ck
from compatkit.adapters.cutting.signals import signal
from compatkit.components import policy_checks
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.manifest import Manifest, Parent, edges, function_digest, to_bytes
from compatkit.errors import (
    DataError,
    FormatError,
    IncompatibleError,
    IntegrityError,
    NotFound,
    UsageError,
    VersionExists,
    VersionTooSmall,
)
from compatkit.foundation.codec import dumps
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.weights.tensorfile import state_digest

LEFT, RIGHT, NARROW = "digits/left.extractor", "digits/right.head", "other/left.extractor"
POLICIES = ("running", "batch", "reestimate", "mix:8")
IMAGES = data_set("left", seed=7, count=24).test


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small networks that share a head, and one that is cut where its features are narrower; only copied."""
    folder = tmp_path_factory.mktemp("recombined") / "parts"
    registry = ck.Registry.init(folder)
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]
    registry.publish(quick(steps=3).fit(tasks, ["dcc"]), prefix="digits")
    narrow = ck.Task("left", data_set("left"), "resnet8_cifar", "layer1", size=(16, 16))
    registry.publish(quick(steps=2).fit([narrow]), prefix="other")
    return folder


@pytest.fixture
def registry(trained: Path, tmp_path: Path) -> ck.Registry:
    """A copy of this test's own."""
    return ck.Registry.open(shutil.copytree(trained, tmp_path / "parts"))


def recombined(registry: ck.Registry, policy: str = "running", extractor: str = LEFT, **more: Any) -> Any:
    data = more.pop("data", IMAGES if policy not in ("running", "batch") else None)
    return registry.recombine(extractor, RIGHT, bn_policy=policy, data=data, **more)


def logits(module: torch.nn.Module, batch: int = 5) -> Tensor:
    with torch.no_grad():
        return module(signal((batch, 1, 16, 16)))


def bits(module: torch.nn.Module) -> str:
    return state_digest(module.state_dict())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_what_was_published_is_what_is_loaded(registry: ck.Registry, policy: str) -> None:
    made = recombined(registry, policy)
    assert registry.publish(made, "pairs/ab") == "pairs/ab@1.0.0"
    for verify in ("auto", "always", "never"):
        again = registry.load("pairs/ab", verify=verify)  # type: ignore[arg-type]
        assert bits(again) == bits(made) and again.bn_policy == policy and not again.training
        assert torch.equal(logits(again), logits(made)) and torch.equal(logits(again, 2), logits(made, 2))
        assert again.contract.data == made.contract.data and again.labels == made.labels
        assert again.sources == made.sources and again.estimated == made.estimated
        assert torch.equal(again.predict(IMAGES).probabilities, made.predict(IMAGES).probabilities)
        assert again.report.findings == made.report.findings
    assert isinstance(registry.load("pairs/ab"), ck.Recombination)


def test_the_manifest_pins_parts_policy_and_what_the_parts_lack(registry: ck.Registry) -> None:
    store = registry.store
    registry.publish(recombined(registry, "reestimate"), "pairs/ab")
    manifest = registry.store.manifest("pairs/ab")
    left, right = (store.resolve(item) for item in (LEFT, RIGHT))
    assert manifest.kind == "recombination"
    assert manifest.parents == (Parent("extractor", str(left.digest)), Parent("head", str(right.digest)))
    assert set(edges(manifest)) == {str(left.digest), str(right.digest), manifest.payload.file.blob}
    functions = [function_digest(store.manifest(item)) for item in (left, right)]
    assert manifest.blueprint.kwargs == {
        "normalisation": "reestimate",
        "functions": functions,
        "pinned": [],
    }
    assert manifest.training["statistics"] == {
        "data": {"name": "left/test", "digest": IMAGES.digest, "images": 24},
        "batch_size": 256,
        "seed": 0,
    }
    state = store.load_state(manifest)
    assert state and all("running_" in name or "num_batches" in name for name in state)
    assert {name.partition(".")[0] for name in state} == {"extractor", "head"}
    contract = manifest.contract
    assert contract.structural.inputs == store.manifest(left).contract.structural.inputs
    assert contract.structural.outputs == store.manifest(right).contract.structural.outputs
    assert contract.data == attrs.evolve(
        store.manifest(left).contract.data, labels=store.manifest(right).contract.data.labels
    )
    assert contract.statistical.probe is not None
    whole = sum(parameter.numel() for parameter in registry.load("pairs/ab").parameters())
    assert manifest.payload.parameters == whole


@pytest.mark.parametrize("policy", ["running", "batch"])
def test_nothing_is_stored_twice(registry: ck.Registry, policy: str) -> None:
    registry.publish(recombined(registry, policy), "pairs/ab")
    payload = registry.store.manifest("pairs/ab").payload
    assert payload.count == 0 and payload.file.bytes < 100


def test_publishing_again_is_the_same_and_has_the_same_bytes_elsewhere(
    registry: ck.Registry, trained: Path, tmp_path: Path
) -> None:
    other = ck.Registry.open(shutil.copytree(trained, tmp_path / "other"))
    for item in (registry, registry, other):
        assert item.publish(recombined(item, "reestimate"), "pairs/ab") == "pairs/ab@1.0.0"
    digests = {str(item.store.resolve("pairs/ab").digest) for item in (registry, other)}
    assert len(digests) == 1


def test_fitted_adapters_go_into_the_payload_or_are_pinned(registry: ck.Registry) -> None:
    data = data_set("left").train
    made = recombined(registry, extractor=NARROW, insert_adapters=True, data=data)
    assert [adapter.blueprint.model for adapter in made.inserted] == ["resize", "project"]
    registry.publish(made, "pairs/own")
    own = registry.store.manifest("pairs/own")
    assert sorted(registry.store.load_state(own)) == ["adapters.1.bias", "adapters.1.weight"]
    (_, facts) = own.training["adapters"]
    assert facts["training"]["data"]["digest"] == data.digest
    targets = {parent["relation"]: parent["component"] for parent in facts["parents"]}
    assert set(targets.values()) <= set(edges(own))

    bridge = registry.publish(made.inserted[1], "digits/bridge")
    pinned = recombined(registry, extractor=NARROW, insert_adapters=True, adapters=bridge)
    registry.publish(pinned, "pairs/pinned")
    manifest = registry.store.manifest("pairs/pinned")
    assert [parent.relation for parent in manifest.parents] == ["extractor", "adapter", "head"]
    assert manifest.parents[1].component == registry.store.resolve(bridge).digest
    assert manifest.blueprint.kwargs["pinned"] == [1] and manifest.payload.count == 0
    assert manifest.training["adapters"][1] is None

    for name, source in (("pairs/own", made), ("pairs/pinned", pinned)):
        again = registry.load(name)
        assert torch.equal(logits(again), logits(made)) and bits(again) == bits(source)
        assert [str(adapter) for adapter in again.inserted] == [str(adapter) for adapter in source.inserted]
        assert [adapter.parents for adapter in again.inserted] == [
            adapter.parents for adapter in source.inserted
        ]
        assert [(adapter.takes, adapter.gives) for adapter in again.inserted] == [
            (adapter.takes, adapter.gives) for adapter in source.inserted
        ]


def test_a_recombination_that_was_changed_since_is_not_published(registry: ck.Registry) -> None:
    made = recombined(registry)
    with torch.no_grad():
        next(made.head.parameters()).add_(1)
    with pytest.raises(
        IntegrityError, match=r"pairs/ab: tensors of this recombination were changed after .* head\."
    ):
        registry.publish(made, "pairs/ab")
    assert not registry.store.names("pairs/*")


def test_parts_of_another_registry_are_missing_here(registry: ck.Registry, tmp_path: Path) -> None:
    empty = ck.Registry.init(tmp_path / "empty")
    with pytest.raises(IntegrityError, match=r"This is the extractor sha256:[0-9a-f]{64} of pairs/ab"):
        empty.publish(recombined(registry), "pairs/ab")


def test_a_recombination_is_loaded_as_one_and_nothing_else_is(registry: ck.Registry) -> None:
    registry.publish(recombined(registry), "pairs/ab")
    assert not isinstance(registry.load(LEFT), ck.Recombination)
    with pytest.raises(NotFound):
        registry.load("pairs/ba")
    with pytest.raises(UsageError, match=r"component of kind extractor .* is of kind recombination"):
        registry.check("pairs/ab", RIGHT)
    with pytest.raises(UsageError, match=r"component of kind head .* is of kind recombination"):
        registry.check(LEFT, "pairs/ab")
    with pytest.raises(UsageError, match="recombination"):
        registry.recombine("pairs/ab", RIGHT)
    with pytest.raises(UsageError, match="is of kind recombination; expected extractor"):
        registry.matrix("pairs/ab", RIGHT, [IMAGES])
    with pytest.raises(UsageError, match="is of kind recombination; expected adapter"):
        recombined(registry, adapters="pairs/ab")
    with pytest.raises(UsageError, match="is a recombination"):
        registry.publish(registry.store.manifest("pairs/ab"), "pairs/x", state={})
    assert registry.check_all("*", "*").extractors, "patterns pass over it"


def test_a_withdrawn_part_is_used_with_a_warning(registry: ck.Registry) -> None:
    made = recombined(registry)
    registry.publish(made, "pairs/ab")
    registry.store.withdraw("digits/right.head", "1.0.0", "trained on the test set")
    expected = "pairs/ab@1.0.0: its head digits/right.head@1.0.0 was withdrawn: trained on the test set"
    with pytest.warns(UserWarning, match=expected):
        again = registry.load("pairs/ab")
    assert torch.equal(logits(again), logits(made))
    plan(registry.store, grace=timedelta(0), withdrawn=True, alone=True).apply()
    with pytest.warns(UserWarning, match="was withdrawn"):
        assert torch.equal(logits(registry.load("pairs/ab")), logits(made))


def test_a_part_without_a_name_is_found_by_its_digest(registry: ck.Registry, tmp_path: Path) -> None:
    """As after an import of the recombination alone, where its parts had no names, or their names were removed."""
    made = recombined(registry)
    registry.publish(made, "pairs/ab")
    shutil.rmtree(registry.store.root / "refs" / "digits")
    again = ck.Registry.open(registry.store.root).load("pairs/ab")
    assert torch.equal(logits(again), logits(made))
    assert again.sources[0].reference == made.sources[0].digest


def blob(registry: ck.Registry, digest: str) -> Path:
    return registry.store.objects.path(digest)


@pytest.mark.parametrize("what", ["manifest", "payload"])
@pytest.mark.parametrize("part", [LEFT, RIGHT])
def test_a_missing_part_is_named(registry: ck.Registry, part: str, what: str) -> None:
    registry.publish(recombined(registry), "pairs/ab")
    resolved = registry.store.resolve(part)
    lost = str(resolved.digest) if what == "manifest" else registry.store.manifest(part).payload.file.blob
    blob(registry, lost).unlink()
    side = "extractor" if part == LEFT else "head"
    with pytest.raises(IntegrityError, match=rf"missing.* This is the {side} \S+ of pairs/ab@1\.0\.0"):
        ck.Registry.open(registry.store.root).load("pairs/ab")


def test_a_damaged_payload_is_refused(registry: ck.Registry) -> None:
    registry.publish(recombined(registry, "reestimate"), "pairs/ab")
    path = blob(registry, registry.store.manifest("pairs/ab").payload.file.blob)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"does not match its digest.*pairs/ab@1\.0\.0"):
        ck.Registry.open(registry.store.root).load("pairs/ab")


def test_it_can_be_imported_with_all_of_its_parts(registry: ck.Registry, tmp_path: Path) -> None:
    made = recombined(registry, extractor=NARROW, insert_adapters=True, data=data_set("left").train)
    registry.publish(made, "pairs/own")
    other = ck.Registry.init(tmp_path / "other")
    other.maintenance.import_from(registry.store, ["pairs/own"])
    assert torch.equal(logits(other.load("pairs/own")), logits(made))
    assert other.maintenance.verify().sound
    plan(other.store, grace=timedelta(0), alone=True).apply()
    assert torch.equal(logits(other.load("pairs/own")), logits(made))


# Manifests that lie

Lie = Any


def with_blueprint(manifest: Manifest, **changes: Any) -> Manifest:
    return attrs.evolve(manifest, blueprint=attrs.evolve(manifest.blueprint, **changes))


def with_kwargs(manifest: Manifest, **changes: Any) -> Manifest:
    return with_blueprint(manifest, kwargs={**manifest.blueprint.kwargs, **changes})


def swapped(manifest: Manifest) -> Manifest:
    left, right = (parent.component for parent in manifest.parents)
    return attrs.evolve(manifest, parents=(Parent("extractor", right), Parent("head", left)))


def other_policy(manifest: Manifest) -> Manifest:
    return with_kwargs(manifest, normalisation="running")


LIES: dict[str, tuple[Lie, str]] = {
    "parts in each other's place": (swapped, "is of kind head; expected extractor or encoder"),
    "no head": (
        lambda document: attrs.evolve(document, parents=document.parents[:1]),
        "expected the parents extractor, head",
    ),
    "two heads": (
        lambda document: attrs.evolve(document, parents=(*document.parents, document.parents[1])),
        "expected the parents",
    ),
    "another function": (
        lambda document: with_kwargs(
            document, functions=list(reversed(document.blueprint.kwargs["functions"]))
        ),
        "is the function value:sha256",
    ),
    "a policy that keeps no statistics": (other_policy, "unexpected tensors"),
    "no policy": (lambda document: with_kwargs(document, normalisation="best"), "expected a policy of batch"),
    "an adapter that is not there": (
        lambda document: with_kwargs(document, pinned=[0]),
        "expected the parents",
    ),
    "unknown arguments": (lambda item: with_kwargs(item, model="x"), "unknown field"),
    "another builder": (lambda document: with_blueprint(document, builder="timm"), "builder 'recombination'"),
    "another side": (lambda document: with_blueprint(document, side="extractor"), "side and builder"),
    "another network": (
        lambda document: with_blueprint(document, model="vgg11"),
        "contradicts its parts: .*blueprint.model",
    ),
    "other classes": (
        lambda document: attrs.evolve(
            document,
            contract=attrs.evolve(
                document.contract,
                data=attrs.evolve(document.contract.data, labels=document.contract.data.labels[::-1]),
            ),
        ),
        "contradicts its parts: contract.data.labels",
    ),
    "another mean": (
        lambda document: attrs.evolve(
            document,
            contract=attrs.evolve(document.contract, data=attrs.evolve(document.contract.data, mean=(0.9,))),
        ),
        r"contract.data.mean\[0\]",
    ),
    "an adapter of nothing": (
        lambda document: attrs.evolve(
            document,
            contract=attrs.evolve(
                document.contract,
                adapters=(
                    Blueprint(
                        "adapter",
                        "compatkit 0.1.0",
                        "cast",
                        {"to": "float64"},
                        "",
                        "adapter",
                        "whole",
                        (16, 16),
                    ),
                ),
            ),
        ),
        "does not take input as stated",
    ),
    "an adapter without arguments": (
        lambda document: attrs.evolve(
            document,
            contract=attrs.evolve(
                document.contract,
                adapters=(Blueprint("adapter", "x", "cast", {}, "", "adapter", "whole", (16, 16)),),
            ),
        ),
        "cannot be composed",
    ),
    "another count of parameters": (
        lambda document: attrs.evolve(document, payload=attrs.evolve(document.payload, parameters=7)),
        "7 parameters are stated",
    ),
    "another probe": (
        lambda document: attrs.evolve(
            document,
            contract=attrs.evolve(
                document.contract,
                statistical=attrs.evolve(
                    document.contract.statistical,
                    probe=attrs.evolve(document.contract.statistical.probe, sketch=(1.0,) * 16),
                ),
            ),
        ),
        "gives other outputs on the probe input",
    ),
    "facts of adapters that it has not": (
        lambda entry: attrs.evolve(entry, training={**entry.training, "adapters": [None]}),
        "one entry for each of 0 adapters",
    ),
    "facts that are none": (
        lambda document: attrs.evolve(document, training={**document.training, "adapters": 3}),
        "training.adapters: expected array, got 3",
    ),
}


@pytest.fixture(scope="module")
def honest(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    registry = ck.Registry.open(shutil.copytree(trained, tmp_path_factory.mktemp("lies") / "parts"))
    registry.publish(recombined(registry, "reestimate"), "pairs/ab")
    return registry


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(honest: ck.Registry, lie: str) -> None:
    make, message = LIES[lie]
    hand = Hand(honest.store.root)
    name = f"lies/{lie.replace(' ', '-').replace(chr(39), '')}"
    hand.publish(name, "1.0.0", hand.put(make(honest.store.manifest("pairs/ab"))))
    with pytest.raises(IntegrityError, match=message):
        honest.load(name)


@pytest.mark.parametrize("change", ["missing", "extra", "shape"])
def test_statistics_must_be_exactly_those_of_the_parts(honest: ck.Registry, change: str) -> None:
    manifest = honest.store.manifest("pairs/ab")
    state = dict(honest.store.load_state(manifest))
    first = min(state)
    if change == "missing":
        del state[first]
    elif change == "extra":
        state["head.conv1.weight"] = torch.zeros(1)
    else:
        state[first] = torch.zeros(3)
    payload = honest.store.put_state(state, parameters=manifest.payload.parameters)
    honest.store.publish(f"lies/{change}", attrs.evolve(manifest, payload=payload))
    with pytest.raises(IntegrityError, match="cannot be composed: The statistics do not match"):
        honest.load(f"lies/{change}")


# Versions


def test_versions_follow_what_changed(registry: ck.Registry) -> None:
    registry.publish(recombined(registry), "pairs/ab")
    assert registry.publish(recombined(registry, "batch"), "pairs/ab") == "pairs/ab@2.0.0"
    change = registry.diff("pairs/ab@1.0.0", "pairs/ab@2.0.0")
    reasons = [reason for (_, reason) in change.by_level()["blueprint"]]
    assert reasons == [
        "other parts, adapters between them, or another batch-norm policy, without a passed measurement"
    ]
    ((path, _),) = change.by_level()["blueprint"].popitem()[1]
    assert path == "kwargs.bn_policy" and change.to_json()["changes"][0]["path"] != path
    about = ck.Registry.open(registry.store.root)
    retitled = attrs.evolve(
        registry.store.manifest(LEFT), about=attrs.evolve(registry.store.manifest(LEFT).about, title="x")
    )
    about.store.publish("digits/left.extractor", retitled)
    assert about.publish(recombined(about, "batch"), "pairs/ab") == "pairs/ab@2.0.1"
    estimated = recombined(about, "reestimate")
    assert about.publish(estimated, "pairs/ab") == "pairs/ab@3.0.0"
    other = about.recombine(LEFT, RIGHT, bn_policy="reestimate", data=data_set("left", seed=9).test)
    assert about.publish(other, "pairs/ab") == "pairs/ab@4.0.0"
    with pytest.raises(ck.errors.VersionTooSmall, match="new weights, without a passed measurement"):
        about.publish(estimated, "pairs/ab", version="4.1.0")
    with pytest.raises(VersionExists):
        about.publish(estimated, "pairs/ab", version="4.0.0")


def test_policies_ask_nothing_of_it_and_other_parts_are_major_all_the_same(
    registry: ck.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.policies.set("digits/", "full_transitive", data=IMAGES, across_major=True)
    monkeypatch.setattr(policy_checks, "measure", None)  # nothing is measured
    assert registry.publish(recombined(registry), "digits/both") == "digits/both@1.0.0"
    own = registry.recombine(LEFT, "digits/left.head", bn_policy="running")
    with pytest.raises(VersionTooSmall, match=r"at least 2\.0\.0 is needed"):
        registry.publish(own, "digits/both", version="1.1.0")
    assert registry.publish(own, "digits/both") == "digits/both@2.0.0"
    outcome = registry.policies.test("digits/both@2.0.0")
    assert outcome.passed and outcome.answers == ()
    assert "policies apply to extractors and heads, not to a recombination" in outcome.verdict


def test_search_and_list_know_it(registry: ck.Registry) -> None:
    registry.publish(recombined(registry), "pairs/ab")
    (result,) = registry.search(kind="recombination")
    assert (result.name, result.model, result.cut, result.channels) == (
        "pairs/ab",
        "resnet8_cifar",
        "layer2",
        (),
    )
    assert [component.name for component in registry.search(parent=RIGHT)] == ["pairs/ab"]
    (names,) = registry.search(digest=registry.store.resolve("pairs/ab").digest)
    assert names.name == "pairs/ab"


def test_a_wrong_policy_or_missing_images_are_refused_as_ever(registry: ck.Registry) -> None:
    with pytest.raises(DataError):  # found again nowhere: the test made them
        registry.recombine(LEFT, RIGHT, bn_policy="reestimate")
    with pytest.raises(UsageError, match="takes no data="):
        registry.recombine(LEFT, RIGHT, bn_policy="batch", data=IMAGES)
    with pytest.raises(IncompatibleError):
        registry.recombine(NARROW, RIGHT)


def test_the_manifest_is_written_as_it_is_read(honest: ck.Registry) -> None:
    manifest = honest.store.manifest("pairs/ab")
    data = to_bytes(manifest)
    assert (
        data
        == dumps(json.loads(data))
        == honest.store.read_blob(str(honest.store.resolve("pairs/ab").digest))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        honest.load("pairs/ab")


def test_errors_are_of_this_library() -> None:
    assert issubclass(FormatError, IntegrityError)
