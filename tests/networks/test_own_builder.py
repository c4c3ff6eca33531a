"""compatkit's own networks: a builder like a plugin's, and the name under which older manifests and plans know it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import torch
from golden.observe import unpack
from small import data_set, quick

import compatkit as ck
from compatkit.adapters.builders import BUILDERS, builder_for, create, library_note
from compatkit.adapters.cutting.planning import plan
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.own_networks import NETWORKS, OWN, actual_builder, planned_builder
from compatkit.errors import UnknownName, UsageError
from compatkit.training.task import Rest
from compatkit.training.testing import assert_builder
from compatkit_plugins.networks import build


def blueprint_of(registry: ck.Registry, name: str) -> Blueprint:
    return registry.store.manifest(registry.store.resolve(name)).blueprint


LIBRARY = f"compatkit {ck.__version__}"


@pytest.mark.parametrize("model", ["resnet8_cifar", "lenet", "vae_dense"])
def test_it_keeps_the_rules_for_builders(model: str) -> None:
    assert_builder(build, model, in_chans=1)


def test_all_networks_that_were_timms_are_its_own_and_no_other_library_has_one() -> None:
    assert set(build.names) >= NETWORKS  # type: ignore[attr-defined]
    for name in build.names:  # type: ignore[attr-defined]
        assert not BUILDERS["timm"].knows(name), name  # type: ignore[misc]
        assert name not in BUILDERS["torchvision"].names()  # type: ignore[misc]


def test_a_network_names_itself_and_none_stands_for_the_default() -> None:
    torch.manual_seed(0)
    network = create("timm", "resnet20_cifar", {"in_chans": 1, "drop_rate": None})
    torch.manual_seed(0)
    again = build("resnet20_cifar", in_chans=1)
    assert network.pretrained_cfg["architecture"] == "resnet20_cifar"
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 10)
    assert all(torch.equal(*pair) for pair in zip(network.parameters(), again.parameters(), strict=True))


def test_timm_is_neither_told_of_them_nor_loaded_for_them() -> None:
    script = (
        "import sys\nfrom compatkit.adapters.builders import builder_for, create\n"
        "create(builder_for('lenet'), 'lenet', {})\nassert 'timm' not in sys.modules\n"
        "import timm\nimport compatkit.adapters.timm\nassert not timm.is_model('lenet')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("model", "stated", "builder"),
    [
        ("resnet20_cifar", None, OWN),
        ("resnet20_cifar", "timm", OWN),
        ("resnet20_cifar", "torchvision", "torchvision"),
        ("resnet18", None, "timm"),
        ("resnet18.a1_in1k", None, "timm"),
        ("resnet18", "torchvision", "torchvision"),
        ("shufflenet_v2_x0_5", None, "torchvision"),
        ("no_such_model", None, "timm"),
    ],
)
def test_a_builder_is_found_by_the_name_of_the_model(model: str, stated: str | None, builder: str) -> None:
    assert builder_for(model, stated) == builder


def test_a_name_that_several_builders_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = attrs.evolve(BUILDERS["torchvision"], names=lambda: ["shufflenet_v2_x0_5", "mine"])
    monkeypatch.setitem(BUILDERS, "twin", twin)
    monkeypatch.setattr(
        "compatkit.adapters.builders.installed", lambda kind: ["compatkit", "torchvision", "twin"]
    )
    assert builder_for("mine") == "twin"
    with pytest.raises(UsageError) as caught:
        builder_for("shufflenet_v2_x0_5")
    assert caught.value.subject == "shufflenet_v2_x0_5"
    assert "torchvision and twin" in str(caught.value)


def test_arguments_that_a_network_does_not_take_and_weights_that_it_lacks_are_refused() -> None:
    with pytest.raises(UsageError, match="'resnet20_cifar' with depht=3"):
        create("timm", "resnet20_cifar", {"depht": 3})
    with pytest.raises(UsageError, match="no pretrained weights for 'resnet20_cifar'"):
        create(OWN, "resnet20_cifar", {}, pretrained=True)
    with pytest.raises(UnknownName, match="did you mean resnet20_cifar"):
        create(OWN, "resnet20_cifer", {})


def test_a_plan_names_the_builder_and_its_version_and_an_older_one_needs_no_note() -> None:
    blueprint = plan("resnet8_cifar", "layer1").extractor
    assert (blueprint.builder, blueprint.library) == (OWN, LIBRARY)
    older = attrs.evolve(blueprint, builder="timm", library="timm 0.1")
    assert older.network == blueprint.network and library_note(older) is None
    assert library_note(attrs.evolve(blueprint, library="compatkit 0.0.1")) is not None


def test_a_recorded_name_and_an_actual_one_are_each_others_inverse() -> None:
    for name in (*NETWORKS, "resnet18"):
        for builder in ("timm", "torchvision"):
            assert planned_builder(actual_builder(builder, name), name) == builder
    assert actual_builder("timm", "resnet18") == "timm" and planned_builder(OWN, "later") == OWN


def test_a_task_and_the_rest_of_another_network_find_their_builders() -> None:
    data = data_set("a")
    assert ck.Task("a", data, "resnet8_cifar", "layer1").builder == OWN
    assert ck.Task("a", data, "resnet8_cifar", "layer1", builder="timm").builder == OWN
    assert ck.Task("a", data, "test_resnet", "layer1").builder == "timm"
    assert Rest("mobilenetv2_cifar", "blocks.9").builder == OWN


def test_parts_are_published_under_their_builder_and_the_plan_names_timm(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    fit = quick(steps=1).fit([ck.Task("a", data_set("a"), "resnet8_cifar", "layer1", size=16)])
    name = registry.publish(fit, prefix="nets")["a.extractor"]
    blueprint = blueprint_of(registry, name)
    assert (blueprint.builder, blueprint.library) == (OWN, LIBRARY)
    assert fit.run["tasks"][0]["builder"] == "timm"


def test_parts_of_older_manifests_are_trained_on_and_published_under_their_builder(tmp_path: Path) -> None:
    registry = ck.Registry.open(unpack(tmp_path))
    older = {"extractor": "digits/left.extractor@1.0.0", "head": "digits/left.head@1.0.0"}
    assert {blueprint_of(registry, name).builder for name in older.values()} == {"timm"}
    for parts in (older, {"extractor": older["extractor"]}):
        task = registry.task("a", data_set("left"), **parts)
        assert task.builder == OWN
        fit = quick(steps=1).fit([task])
        for name in registry.publish(fit, prefix=f"again{len(parts)}").values():
            blueprint = blueprint_of(registry, name)
            assert (blueprint.builder, blueprint.library) == (OWN, LIBRARY), name
