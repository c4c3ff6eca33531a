"""Bridges between components of a registry: chosen, kept, loaded again as the same function."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from small import data_set

import compatkit as ck
from compatkit.cli import main
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.contract import Statistical
from compatkit.errors import DataError, IncompatibleError, UsageError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.registry.names import Version

SMALL: dict[str, Any] = {"layers": [1, 1, 1, 1]}
NETWORKS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int]]] = {
    "one": ("resnet8_cifar", "layer2", {}, (16, 16)),  # 32 channels of 8x8
    "two": ("resnet8_cifar", "layer2", {}, (16, 16)),
    "narrow": ("resnet8_cifar", "layer1", {}, (16, 16)),  # 16 channels of 16x16
    "convs": ("lenet", "pool1", {}, (32, 32)),  # 6 channels of 14x14, into one convolution
    "again": ("lenet", "pool1", {}, (32, 32)),
    "vector": ("lenet", "dense2", {}, (32, 32)),  # a vector of 84
    "larger": (
        "resnet8_cifar",
        "layer2",
        {},
        (24, 24),
    ),  # 32 channels of 12x12, for a head that takes any size
    "fixed": (
        "lenet",
        "pool1",
        {"img_size": (28, 28)},
        (28, 28),
    ),  # 6 channels of 12x12, for a head that takes no other
    "wide24": ("resnet18", "layer1", SMALL | {"channels": [24, 32, 32, 32]}, (32, 32)),  # 24 channels of 8x8
    "wide16": ("resnet18", "layer1", SMALL | {"channels": [16, 32, 32, 32]}, (32, 32)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    registry = ck.Registry.init(tmp_path_factory.mktemp("bridges"), exist_ok=True)
    for seed, (name, (model, point, kwargs, size)) in enumerate(NETWORKS.items()):
        settings = {"in_chans": 1, "num_classes": 3, **kwargs}
        parts = split(model, point, kwargs=settings, size=size, seed=seed, labels=("0", "1", "2"))
        publish_split(registry.store, parts, f"zoo/{name}")
    return registry


@pytest.fixture
def registry(made: ck.Registry, tmp_path: Path) -> ck.Registry:
    """A copy to publish in."""
    return ck.Registry.open(shutil.copytree(made.store.root, tmp_path / "mine"))


@pytest.fixture(scope="module")
def images() -> ck.Split:
    return data_set("noise", size=(16, 16), count=60).train


def test_a_bridge_is_kept_with_its_statistics_contract_and_provenance(
    registry: ck.Registry, images: ck.Split, tmp_path: Path
) -> None:
    outcome = registry.bridge(
        "zoo/narrow.extractor", "zoo/one.head", images, rungs=["ridge", "ridge3x3"], until=None, test=images
    )
    assert [entry.rung for entry in outcome.steps] == ["ridge", "ridge3x3"]
    assert (
        outcome.to_png(tmp_path / "ladder.png") == (tmp_path / "ladder.png").read_bytes() == outcome.to_png()
    )
    assert outcome.to_png()[:8] == b"\x89PNG\r\n\x1a\n"
    names = registry.publish(outcome, "pairs/bridge", rung="ridge3x3", accept_doubtful=True)
    assert names == {
        "adapter": "pairs/bridge.adapter@1.0.0",
        "recombination": "pairs/bridge@1.0.0",
    }
    again = registry.load(names["recombination"])
    step = outcome.step("ridge3x3")
    assert step.accuracy is not None and step.agreement is not None and step.candidate is not None
    right = int((again.predict(images).positions.numpy() == images.labels).sum())
    # With the statistics that were estimated; tensors that lie elsewhere may turn a tie by their last bits.
    assert abs(right - step.accuracy.correct) <= 1
    adapter = registry.store.manifest(names["adapter"])
    digests = {
        name: str(registry.store.resolve(f"zoo/{name}").digest) for name in ("narrow.extractor", "one.head")
    }
    assert {(parent.relation, parent.component) for parent in adapter.parents} >= {
        ("adapts", digests["narrow.extractor"]),
        ("head", digests["one.head"]),
    }
    facts = adapter.training
    assert facts["method"] == "ridge3x3" and facts["agreement"] == step.agreement.accuracy
    assert facts["data"]["images"] == 30 and facts["held_out"] == 30 and facts["seconds"] >= 0
    assert step.agreed is not None and facts["kappa"] == step.agreed.kappa
    assert [entry.model for entry in again.contract.adapters] == ["resize", "project"]
    statistics = registry.store.manifest(names["recombination"]).training["statistics"]
    assert statistics["of"] == "head" and statistics["data"]["digest"] == facts["data"]["digest"]


def test_published_bridges_of_a_pair_are_found_with_how_they_were_judged(
    registry: ck.Registry, images: ck.Split, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ("zoo/again.extractor", "zoo/convs.head")
    assert registry.bridges.of(*pair) == []
    outcome = registry.bridge(*pair, images, rungs=["ridge", "absorbed"], until=None)
    registry.publish(outcome, "pairs/b", rung="absorbed", accept_doubtful=True)
    registry.publish(outcome, "pairs/a", rung="ridge", accept_doubtful=True)
    first, other = registry.bridges.of(*pair)
    assert (first.reference, first.rung) == ("pairs/a@1.0.0", "ridge")
    assert (other.reference, other.rung) == ("pairs/b@1.0.0", "absorbed")  # its head is refitted, of the same
    step = outcome.step("absorbed")
    assert step.agreement is not None and (other.agreement, other.held_out, other.says) == (
        step.agreement.accuracy,
        30,
        step.meaning,
    )
    assert registry.bridges.of("zoo/one.extractor", "zoo/convs.head") == []
    with pytest.raises(SystemExit):
        main(["--registry", str(registry.store.root), "check", *pair])
    text = " ".join(capsys.readouterr().out.split())
    assert "pairs/b@1.0.0 bridges them through absorbed: agreement" in text and "Measure the pair" not in text
    registry.store.withdraw("pairs/a", Version(1, 0, 0), "a test")
    assert [entry.rung for entry in registry.bridges.of(*pair)] == ["absorbed"]


def test_the_extractors_own_statistics_stay(registry: ck.Registry, images: ck.Split) -> None:
    outcome = registry.bridge("zoo/two.extractor", "zoo/one.head", images, rungs=["statistics"])
    model, own = outcome.recombination, registry.load("zoo/two.extractor").state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.extractor.state_dict().items())
    head = registry.load("zoo/one.head").state_dict()
    changed = {name for name, value in model.head.state_dict().items() if not torch.equal(value, head[name])}
    assert changed and all("running" in name or "num_batches" in name for name in changed)
    assert registry.publish(outcome, "pairs/anew", accept_doubtful=True) == {
        "recombination": "pairs/anew@1.0.0"
    }
    assert registry.load("pairs/anew").estimated["of"] == "head"


def test_a_refitted_head_is_a_component_of_the_old_ones_blueprint(
    registry: ck.Registry, images: ck.Split
) -> None:
    outcome = registry.bridge("zoo/again.extractor", "zoo/convs.head", images, rungs=["absorbed"])
    names = registry.publish(outcome, "pairs/absorbed", accept_doubtful=True)
    assert sorted(names) == ["head", "recombination"]
    manifest, old = registry.store.manifest(names["head"]), registry.store.manifest("zoo/convs.head")
    assert manifest.blueprint == old.blueprint and manifest.training["layers"] == ["conv2"]
    assert manifest.parents[0].relation == "initialised_from"
    assert not any(parent.relation == "trained_with" for parent in manifest.parents)
    again = registry.load(names["recombination"])
    pixels = normalize(prepare(images, again.data).images, again.data)
    torch.testing.assert_close(again(pixels), outcome.recombination(pixels), atol=1e-6, rtol=1e-6)
    assert len(again.contract.adapters) == 0


def test_a_head_refitted_to_another_width_is_built_again_from_its_blueprint(
    registry: ck.Registry, images: ck.Split
) -> None:
    outcome = registry.bridge("zoo/one.extractor", "zoo/convs.head", images, rungs=["absorbed"])
    names = registry.publish(outcome, "pairs/wider", accept_doubtful=True)
    manifest, old = registry.store.manifest(names["head"]), registry.store.manifest("zoo/convs.head")
    assert manifest.blueprint == attrs.evolve(old.blueprint, entries=(("conv2", 32),))
    assert old.contract.structural.inputs[0].channels == 6
    inputs = registry.store.manifest("zoo/one.extractor").contract.structural.outputs[0]
    taken = manifest.contract.structural.inputs[0]
    assert (taken.channels, taken.range) == (32, inputs.range)
    again = registry.load(names["recombination"])
    assert [adapter.model for adapter in again.contract.adapters] == ["resize"]
    pixels = normalize(prepare(images, again.data).images, again.data)
    torch.testing.assert_close(again(pixels), outcome.recombination(pixels), atol=1e-6, rtol=1e-6)
    assert registry.check("zoo/again.extractor", names["head"]).wiring == "needs-adapter"  # 6 channels come


def test_vectors_are_bridged_and_what_needs_maps_is_left_out(registry: ck.Registry, images: ck.Split) -> None:
    outcome = registry.bridge(
        "zoo/one.extractor", "zoo/vector.head", images, rungs=["ridge", "ridge3x3"], until=None, max_images=10
    )
    assert outcome.chosen == "ridge"
    assert (
        outcome.steps[1].note == "A 3x3 convolution needs maps, but the features are NC. Use the rung ridge."
    )
    assert outcome.to_json()["steps"][0]["says"] in ("fit", "doubtful", "no fit")
    assert "Rung ridge: agreement" in str(outcome)


def test_the_same_images_and_seed_give_the_same_bridge(made: ck.Registry, images: ck.Split) -> None:
    pair = "zoo/two.extractor", "zoo/one.head", images
    first, second = (made.bridge(*pair, rungs=["ridge", "stitch"], until=None) for _ in range(2))
    for rung in ("ridge", "stitch"):
        states = [item.step(rung).candidate.fitted.module.state_dict() for item in (first, second)]  # type: ignore[union-attr]
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    other = made.bridge(*pair, rungs=["ridge"], seed=1)
    assert other.step("ridge").candidate is not None


@pytest.mark.case("F")
def test_what_cannot_be_bridged_is_refused(made: ck.Registry, images: ck.Split) -> None:
    pair = "zoo/two.extractor", "zoo/one.head"
    with pytest.raises(UsageError, match=r"data= expects a Split of images, got a DataSet"):
        made.bridge(*pair, data_set("noise"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'until' must be a number from 0 to 1, or None; got 80"):
        made.bridge(*pair, images, until=80)
    with pytest.raises(UsageError, match="expects labeled images; noise/train has no labels"):
        made.bridge(*pair, images, labels=images.unlabeled())
    with pytest.raises(DataError, match="a bridge needs at least 20"):
        made.bridge(*pair, images.subset(12))
    with pytest.raises(IncompatibleError):
        made.bridge("zoo/vector.extractor", "zoo/one.head", images)
    outcome = made.bridge(*pair, images, rungs=["statistics"])
    with pytest.raises(UsageError, match="'ridge' was not tried; tried were statistics"):
        made.publish(outcome, "pairs/none", rung="ridge")
    wide = made.bridge("zoo/narrow.extractor", "zoo/one.head", images, rungs=["direct", "ridge"], until=None)
    with pytest.raises(UsageError, match=r"direct was left out: .* 16 channels, and the head takes 32"):
        made.publish(wide, "pairs/none", rung="direct")


def test_color_images_reach_a_part_that_takes_gray_ones(made: ck.Registry) -> None:
    """Whatever an extractor cannot take is brought to its contract: size and channels."""
    color = data_set("noise", size=(40, 24), count=40, channels=3).train
    outcome = made.bridge("zoo/again.extractor", "zoo/one.head", color, rungs=["ridge"])
    assert outcome.step("ridge").agreement is not None


def test_the_recombination_states_how_the_bridge_was_judged(registry: ck.Registry, images: ck.Split) -> None:
    outcome = registry.bridge(
        "zoo/two.extractor",
        "zoo/one.head",
        images,
        test=images,
        rungs=["direct", "ridge"],
        until=None,
        seed=3,
    )
    for rung in ("direct", "ridge"):
        saved = registry.publish(outcome, f"pairs/{rung}", rung=rung, accept_doubtful=True)["recombination"]
        step = outcome.step(rung)
        assert step.agreed is not None
        assert registry.store.manifest(saved).training["bridge"] == {
            "rung": rung,
            "agreement": step.agreed.figure.accuracy,
            "chance": step.agreed.chance,
            "kappa": step.agreed.kappa,
            "held_out": 30,
            "seconds": round(step.seconds, 3),
            "says": step.meaning,
            "head": registry.store.resolve("zoo/one.head").digest,
            "seed": 3,
            "reference": outcome.details["reference"],
            "paired_on": {
                "on": "src",
                "name": images.name,
                "digest": outcome.details["data"]["digest"],
                "images": 30,
            },
        }
        assert registry.load(saved).predict(images).positions.shape == (60,)
    blind = registry.bridge("zoo/two.extractor", "zoo/one.head", images, rungs=["direct"])
    saved = registry.publish(blind, "pairs/blind", accept_doubtful=True)["recombination"]
    assert registry.store.manifest(saved).training["bridge"]["reference"] is None


def test_features_enter_directly_only_where_no_adapter_is_needed(made: ck.Registry, images: ck.Split) -> None:
    pair = "zoo/again.extractor", "zoo/fixed.head"
    outcome = made.bridge(*pair, images, rungs=["direct", "statistics"], until=None)
    assert outcome.step("direct").note == (
        "The features need an adapter before the head, and this rung inserts none: resize to 12x12."
    )
    assert outcome.chosen == "statistics" and [
        adapter.blueprint.model for adapter in outcome.recombination.inserted
    ] == ["resize"]
    between = made.bridges.between(*pair, {"zoo/again.extractor": images}, "best")
    (best,) = between.values()
    assert [step.rung for step in best.steps][:2] == ["statistics", "permutation"]
    assert best.step("ridge").agreement is not None


def test_direct_is_judged_on_the_features_that_it_stands_on(made: ck.Registry, images: ck.Split) -> None:
    """A head that takes any size: the rungs fit at its own 8x8 positions, and directly it gets 12x12."""
    outcome = made.bridge(
        "zoo/larger.extractor", "zoo/one.head", images, rungs=["direct", "ridge"], until=None
    )
    step, inputs = outcome.step("direct"), outcome.step("ridge").candidate.inputs  # type: ignore[union-attr]
    assert [entry.blueprint.kwargs["size"] for entry in inputs.before] == [[8, 8]]
    whole = torch.nn.Sequential(made.load("zoo/larger.extractor"), made.load("zoo/one.head")).eval()
    data = made.store.manifest("zoo/larger.extractor").contract.data
    with torch.no_grad():
        result = whole(normalize(prepare(inputs.held_out, data).images, data)).argmax(1)
    wanted = inputs.answers(inputs.reference(), inputs.held_out).argmax(1)
    assert step.agreement is not None and step.agreement.correct == int((result == wanted).sum())


@pytest.mark.parametrize("rung", ["absorbed", "infomax"])
def test_a_head_is_refitted_to_another_width_at_equal_positions(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    monkeypatch.setattr("compatkit_plugins.rungs.entry_layers.INFORMING", {"lr": 1e-5, "steps": 2})
    pair = "zoo/wide24.extractor", "zoo/wide16.head"
    assert registry.check(*pair).wiring == "needs-adapter"
    outcome = registry.bridge(*pair, images, rungs=[rung])
    assert outcome.recombination.inserted == () and outcome.recombination.report.wiring == "direct"
    names = registry.publish(outcome, "pairs/equal", accept_doubtful=True)
    taken = registry.store.manifest(names["head"]).contract.structural.inputs[0]
    assert taken.channels == 24 and registry.check("zoo/wide24.extractor", names["head"]).wiring == "direct"
    again = registry.load(names["recombination"])
    pixels = normalize(prepare(images, again.data).images, again.data)
    torch.testing.assert_close(again(pixels), outcome.recombination(pixels), atol=1e-5, rtol=1e-5)


def test_a_matrix_is_bridged_without_accuracy_on_classes_that_the_head_does_not_know(
    made: ck.Registry, images: ck.Split
) -> None:
    other = data_set("pets", size=(16, 16), count=30, classes=("cat", "dog", "fox")).test
    pair, name = ("zoo/two.extractor", "zoo/one.head"), "zoo/two.extractor"
    (result,) = made.bridges.between(*pair, {name: images}, "ridge", tests={name: other}).values()
    assert result.step("ridge").accuracy is None and result.details["reference"] is None
    note = "No accuracy is measured: pets/test holds no image of a class that zoo/one.head@1.0.0 knows."
    assert note in result.notes and note in result.lines()
    (known,) = made.bridges.between(*pair, {name: images}, "ridge", tests={name: images}).values()
    assert known.step("ridge").accuracy is not None and known.notes == ()
    with pytest.raises(DataError, match="none in common"):
        made.bridge(*pair, images, test=other)


def test_rungs_that_were_not_climbed_are_named(made: ck.Registry) -> None:
    """The head on its own extractor agrees with itself."""
    images = data_set("noise", size=(16, 16), count=300).train
    pair = "zoo/convs.extractor", "zoo/convs.head", images
    outcome = made.bridge(*pair, rungs=["statistics", "ridge", "stitch"], until=0.5)
    assert outcome.says == "fit" and outcome.chosen == "statistics"
    assert outcome.not_climbed == ("ridge", "stitch") and outcome.to_json()["not_climbed"] == [
        "ridge",
        "stitch",
    ]
    assert (
        outcome.notes[-1]
        == "Not tried, because statistics fits with an agreement of at least 0.5: ridge, stitch."
    )
    every = made.bridge(*pair, rungs=["statistics", "ridge"], until=None)
    assert every.not_climbed == () and not any("Not tried" in note for note in every.notes)


def test_a_bridge_trained_with_labels_is_judged_by_labels_and_kept(
    registry: ck.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untrained networks: what the head says of an image is worth nothing, until it learns from labels."""
    labels = data_set("rows", size=(16, 16), count=120).train
    outcome = registry.bridge(
        "zoo/two.extractor",
        "zoo/one.head",
        labels,
        labels=labels,
        rungs=["statistics", "finetune"],
        until=None,
    )
    assert (outcome.chosen, outcome.judged_by, outcome.to_json()["judged_by"]) == (
        "finetune",
        "labels",
        "labels",
    )
    step = outcome.step("finetune")
    assert step.checked is not None and step.labels == 60 and step.checked.figure.count == 60
    assert outcome.says == step.checked.verdict != "no fit"
    assert outcome.notes[0].startswith("finetune was chosen and judged by labels") and outcome.notes[
        0
    ] in str(outcome)
    names = registry.publish(outcome, "pairs/taught", accept_doubtful=True)
    stated = registry.store.manifest(names["recombination"]).training["bridge"]
    assert stated["says"] == outcome.says and stated["checked"]["share"] == step.checked.figure.accuracy
    assert stated["labels"] == 60
    message = {entry.name: entry.labels for entry in outcome.ladder()}
    assert message["finetune"] == 60 and not any(
        count for rung, count in message.items() if rung != "finetune"
    )
    adapter = registry.store.manifest(names["adapter"])
    assert "unlabeled" not in adapter.about.title and adapter.training["labels"] == 60


def test_a_matrix_holds_bridges_that_leave_the_parts_as_they_are(
    registry: ck.Registry, images: ck.Split
) -> None:
    pair = "zoo/two.extractor", "zoo/one.head"
    (result,) = registry.bridges.between(*pair, {pair[0]: images}, "ridge").values()
    bridges, data = {(result.extractor, result.head): result}, {"zoo/*": images}
    matrix = registry.matrix(*pair, data, bridges=bridges, bn_policy="reestimate")
    assert matrix.settings["bridge"] == ["ridge in 1 cell"]
    with pytest.raises(UsageError, match="'running' would replace by stored ones"):
        registry.matrix(*pair, data, bridges=bridges, bn_policy="running")
    with pytest.raises(
        UsageError, match=r"has the key \('zoo/two.extractor', 'zoo/one.head'\) where .*two.extractor@1.0.0'"
    ):
        registry.matrix(*pair, data, bridges={pair: result})
    with pytest.raises(UsageError, match=r"as bridges\.between returns them; got a list"):
        registry.matrix(*pair, data, bridges=[result])  # type: ignore[arg-type]
    convs = "zoo/convs.extractor", "zoo/again.head"
    refitted = registry.bridge(*convs, images, rungs=["absorbed"], until=None)
    with pytest.raises(UsageError, match=r"by absorbed changes the head's weights.*Registry.load"):
        registry.matrix(*convs, data, bridges={(refitted.extractor, refitted.head): refitted})
    stored = registry.bridge(*pair, images, rungs=["direct"], until=None)
    with pytest.raises(UsageError, match=r"by direct keeps the head's stored statistics"):
        registry.matrix(*pair, data, bridges={(stored.extractor, stored.head): stored})


def test_a_part_whose_features_say_nothing_costs_a_matrix_its_own_cells_only(
    registry: ck.Registry, images: ck.Split
) -> None:
    manifest = registry.store.manifest("zoo/two.extractor")
    contract = attrs.evolve(manifest.contract, statistical=Statistical())
    state = {
        name: torch.zeros_like(value)
        for name, value in registry.load("zoo/two.extractor").state_dict().items()
    }
    registry.publish(attrs.evolve(manifest, contract=contract), "zoo/dead.extractor", state=state)
    names = ["zoo/dead.extractor", "zoo/two.extractor"]
    with pytest.warns(
        UserWarning, match=r"dead.extractor@1.0.0 with .* has no bridge by ridge: The features of"
    ):
        result = registry.bridges.between(names, "zoo/one.head", dict.fromkeys(names, images), "ridge")
    assert [value.split("@")[0] for value, _ in result] == ["zoo/two.extractor"]
    with pytest.raises(DataError, match="12 images; a bridge needs at least 20"):
        registry.bridges.between(names, "zoo/one.head", dict.fromkeys(names, images.subset(12)), "ridge")


def test_a_bridge_never_takes_the_name_of_a_head_that_was_trained(
    registry: ck.Registry, images: ck.Split
) -> None:
    outcome = registry.bridge("zoo/convs.extractor", "zoo/again.head", images, rungs=["absorbed"], until=None)
    before = registry.store.names()
    with pytest.raises(UsageError, match=r"zoo/again.head is a trained head.*under another name"):
        registry.publish(outcome, "zoo/again", accept_doubtful=True)
    assert registry.store.names() == before
    published = registry.publish(outcome, "pairs/one", accept_doubtful=True)
    assert registry.publish(outcome, "pairs/one", accept_doubtful=True) == published
    with pytest.raises(IncompatibleError, match=r"was refitted by a bridge.*Use its origin \(sha256:"):
        registry.bridge("zoo/again.extractor", published["head"], images)
    with pytest.raises(UsageError) as caught:
        registry.publish("ridge", "pairs/one")  # type: ignore[call-overload]
    assert caught.value.subject == "ridge"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "'seed' must be a whole number"),
        ({"seed": 2**64}, "'seed' must be a whole number"),
        ({"seed": "a"}, "'seed' must be a whole number"),
        ({"rungs": 5}, "rungs= expects the name of a rung, such as 'ridge', or a list of these; got 5"),
        ({"rungs": [None]}, "or a list of these; got None"),
    ],
)
def test_settings_of_a_bridge_are_checked(
    made: ck.Registry, images: ck.Split, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        made.bridge("zoo/two.extractor", "zoo/one.head", images, **settings)


def test_images_of_a_matrix_are_given_by_extractor(made: ck.Registry, images: ck.Split) -> None:
    with pytest.raises(
        UsageError, match="data= expects a mapping from extractor name to images, got a Split"
    ):
        made.bridges.between("zoo/two.extractor", "zoo/one.head", images, "ridge")  # type: ignore[arg-type]


def test_what_is_not_shown_to_fit_is_published_only_when_told(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = registry.bridge("zoo/again.extractor", "zoo/one.head", images, rungs=["ridge"])
    for verdict in ("doubtful", "no fit"):
        monkeypatch.setattr("compatkit.components.bridges.judging.Judgment.verdict", verdict)
        assert outcome.says == verdict
        with pytest.raises(UsageError) as caught:
            registry.publish(outcome, "pairs/doubted")
        assert caught.value.subject == "pairs/doubted"
        assert not any(name.startswith("pairs/doubted") for name in registry.store.names())
    registry.publish(outcome, "pairs/doubted", accept_doubtful=True)
    manifest = registry.store.manifest("pairs/doubted")
    assert manifest.training["bridge"]["says"] == "no fit"
    monkeypatch.setattr("compatkit.components.bridges.judging.Judgment.verdict", "fit")
    registry.publish(outcome, "pairs/fits")
