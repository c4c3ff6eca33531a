"""Methods of the registry that were renamed answer under their former names, with a warning that says the new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from small import data_set

import compatkit as ck
from compatkit.components.former import FORMER
from compatkit.registry.policies import Policy

EXTRACTOR, HEAD = "digits/left.extractor", "digits/left.head"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """Return a registry with the parts of one fit, beside which nothing is written."""
    made = ck.Registry.init(tmp_path_factory.mktemp("former") / "parts")
    made.publish(fit(), prefix="digits")
    return made


def fit() -> ck.Fit:
    task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer1")
    return ck.Trainer(steps=1, batch_size=8, seed=0).fit([task])


def former(registry: ck.Registry, name: str) -> Any:
    with pytest.warns(DeprecationWarning) as caught:
        found = getattr(registry, name)
    assert str(caught[0].message) == f"Registry.{name} is now Registry.{FORMER[name].path}"
    assert caught[0].filename == __file__
    return found


@pytest.mark.parametrize("name", FORMER)
def test_every_former_name_answers_with_a_warning(registry: ck.Registry, name: str) -> None:
    assert callable(former(registry, name))


def test_a_name_that_never_was_is_none(registry: ck.Registry) -> None:
    with pytest.raises(AttributeError) as caught:
        registry.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("nothing", registry)


def test_at_most_25_methods_and_properties_are_public() -> None:
    made = {"init", "open", "clone", "store"}
    assert len([one for one in dir(ck.Registry) if not one.startswith("_") and one not in made]) <= 25


def test_former_names_read_as_the_new_ones_do(registry: ck.Registry) -> None:
    assert former(registry, "manifest")(HEAD) == registry[HEAD].manifest
    assert former(registry, "aliases")(HEAD) == {}
    assert [str(one.name) for one in former(registry, "select")("digits/*.head", "head")] == [HEAD]
    built, loaded = former(registry, "build")(HEAD), registry.load(HEAD)
    assert all(built.state_dict()[key].equal(one) for key, one in loaded.state_dict().items())
    assert former(registry, "bridges_of")(EXTRACTOR, HEAD) == []
    assert former(registry, "signatures")(HEAD) == []


def test_a_part_to_stay_compatible_with_is_named_by_place_or_by_name(registry: ck.Registry) -> None:
    with pytest.raises(ck.errors.NotFound):
        former(registry, "auxiliary_heads")(pattern="digits/shared.*")
    for found in (
        former(registry, "released")(HEAD, EXTRACTOR),
        former(registry, "released")(extractor=EXTRACTOR, head=HEAD),
    ):
        new = registry.frozen(head=HEAD, extractor=EXTRACTOR)
        assert found.keys() == new.keys() and len(found) == 2


def test_policies_were_methods(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    made: Policy = former(registry, "set_policy")("digits/", "none")
    assert former(registry, "policy")("digits/a.head") == made == registry.policies["digits/*"]
    with pytest.warns(DeprecationWarning):
        assert registry.policies() == {"digits/*": made} == registry.policies
    former(registry, "clear_policy")("digits/")
    assert registry.policies == {} and len(former(registry, "policy_history")("digits/")) == 2


def test_what_is_published_came_second_and_its_name_first(registry: ck.Registry, tmp_path: Path) -> None:
    other = ck.Registry.init(tmp_path / "parts")
    outcomes = former(other, "rehearse")(fit(), prefix="digits")
    assert outcomes.keys() == {"left.extractor", "left.head"} and other.names() == []
    found = registry[EXTRACTOR].manifest
    manifest = attrs.evolve(found, parents=())
    state = registry.load(EXTRACTOR).state_dict()
    assert former(registry, "register")("again/a.extractor", manifest, state) == "again/a.extractor@1.0.0"
    assert former(registry, "register")(name="again/b.extractor", manifest=manifest, state=state)
    made = registry.recombine(EXTRACTOR, HEAD)
    assert former(registry, "publish_recombination")("pairs/a", made, version="1.0.0") == "pairs/a@1.0.0"
    assert former(registry, "publish_recombination")("pairs/b", recombination=made) == "pairs/b@1.0.0"
    assert isinstance(former(registry, "load_recombination")("pairs/a"), ck.Recombination)


@pytest.mark.parametrize("wrong", [None, "digits/left.head", 3])
def test_what_cannot_be_published_is_refused(registry: ck.Registry, wrong: Any) -> None:
    with pytest.raises(ck.errors.UsageError) as caught:
        registry.publish(wrong, "a")
    assert caught.value.subject == wrong


def test_a_setting_of_another_type_is_refused(registry: ck.Registry) -> None:
    made = registry.recombine(EXTRACTOR, HEAD)
    for settings, subject in (({"rung": "ridge"}, "rung"), ({"dry_run": True}, "dry_run")):
        with pytest.raises(ck.errors.UsageError) as caught:
            registry.publish(made, "pairs/no", **settings)
        assert caught.value.subject == subject
    with pytest.raises(ck.errors.UsageError) as caught:
        registry.publish(made)  # type: ignore[call-overload]
    assert caught.value.subject == "name"
