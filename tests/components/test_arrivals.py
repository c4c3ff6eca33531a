"""What comes in from elsewhere is admitted on figures: those that come along, those that are here, or new ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from small import data_set, quick
from torch import Tensor

import compatkit as ck
from compatkit.components import policy_checks
from compatkit.errors import (
    Incomplete,
    PolicyBroken,
    PolicyDataMissing,
    PolicyUndecided,
    VersionUntrue,
)
from compatkit.registry.names import Version

EXTRACTOR, HEAD = "digits/left.extractor", "digits/left.head"
NEXT = f"{EXTRACTOR}@1.1.0"
DATA = data_set("left")
SPLIT = DATA.test
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry that is only copied: an extractor and its head, 1.0.0."""
    task = ck.Task("left", DATA, "resnet8_cifar", "layer2", size=(16, 16))
    made = ck.Registry.init(tmp_path_factory.mktemp("admitting") / "released")
    made.publish(quick(steps=30, seed=0).fit([task], ["dcc"]), prefix="digits")
    return made.store.root


@pytest.fixture
def here(released: Path, tmp_path: Path) -> ck.Registry:
    """The registry that has promised something."""
    made = ck.Registry.open(shutil.copytree(released, tmp_path / "here"))
    policy(made)
    return made


@pytest.fixture
def target(released: Path, tmp_path: Path) -> ck.Registry:
    """A registry that has promised nothing."""
    return ck.Registry.open(shutil.copytree(released, tmp_path / "there"))


def policy(registry: ck.Registry, **more: Any) -> None:
    registry.policies.set(EXTRACTOR, "backward", **{"data": SPLIT, "tolerance": 0.05, **more})


def nearly(values: Weights) -> Weights:
    return {key: value * 1.0001 if value.is_floating_point() else value for key, value in values.items()}


def spoilt(values: Weights) -> Weights:
    return {key: value.flip(0) if value.ndim else value for key, value in values.items()}


def succeed(registry: ck.Registry, change: Callable[[Weights], Weights]) -> None:
    """Publish changed weights as 1.1.0, vouched for by nobody but their owner."""
    old = registry.store.manifest(f"{EXTRACTOR}@1.0.0")
    state = change(
        {key: value.clone() for key, value in registry.load(f"{EXTRACTOR}@1.0.0").state_dict().items()}
    )
    probe = attrs.evolve(old.contract.statistical, probe=None)
    manifest = attrs.evolve(old, contract=attrs.evolve(old.contract, statistical=probe))
    registry.publish(manifest, "trial/eye", state=state)
    registry.store.publish(EXTRACTOR, registry.store.manifest("trial/eye"), version="1.1.0", measured=True)


def succeed_measured(registry: ck.Registry) -> None:
    succeed(registry, nearly)
    policy(registry)
    assert registry.policies.test(NEXT, data=[SPLIT]).passed


def has(registry: ck.Registry) -> bool:
    return Version.parse("1.1.0") in registry.store.versions(EXTRACTOR)


def test_figures_that_come_along_decide_and_nothing_is_measured(
    here: ck.Registry, target: ck.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed_measured(target)
    monkeypatch.setattr(policy_checks, "measure", None)
    moved = here.pull(str(target.store.root), EXTRACTOR)  # its head stays, and is here
    assert has(here) and moved.results == 2


def test_without_figures_the_message_says_what_is_missing_and_what_to_do(
    here: ck.Registry, target: ck.Registry
) -> None:
    succeed_measured(target)
    with pytest.raises(PolicyUndecided) as refused:
        here.maintenance.import_from(target.store, [EXTRACTOR], evidence=False)
    message = str(refused.value)
    assert message.startswith(f"{EXTRACTOR}: no result")
    for text in (f"{EXTRACTOR}@candidate with {HEAD}@1.0.0", "--measure", "--unmeasured"):
        assert text in message
    assert not has(here)
    here.maintenance.import_from(target.store, [EXTRACTOR])
    assert has(here)


def test_what_is_missing_is_measured_where_that_is_asked_for(here: ck.Registry, target: ck.Registry) -> None:
    succeed(target, nearly)
    with pytest.raises(Incomplete, match="no result"):
        here.pull(str(target.store.root))
    with pytest.raises(Incomplete, match="not available") as refused:
        here.pull(str(target.store.root), measure=True)
    assert isinstance(refused.value.errors[0], PolicyDataMissing)
    here.pull(str(target.store.root), measure=True, data=[SPLIT])
    assert has(here)
    assert here.policies.test(NEXT, data=[SPLIT]).passed


def test_what_breaks_is_refused_on_figures_and_on_measuring(here: ck.Registry, target: ck.Registry) -> None:
    succeed(target, spoilt)
    measuring = policy_checks.policy_checks(measure=True, data=[SPLIT])
    with pytest.raises(PolicyBroken, match="A copy has a fixed number") as refused:
        here.maintenance.import_from(target.store, policy_checks=measuring)
    assert refused.value.subject.matrix is not None and not has(here)
    with pytest.raises(PolicyBroken, match="A copy has a fixed number"):
        here.maintenance.import_from(target.store, unmeasured=True)  # the figures are here now
    here.policies.set(EXTRACTOR, "none")
    here.maintenance.import_from(target.store)
    assert has(here)


def test_of_several_figures_the_one_that_says_least_for_it_counts(
    here: ck.Registry, target: ck.Registry
) -> None:
    succeed(target, spoilt)
    policy(target)
    target.policies.test(NEXT, data=[SPLIT])
    functions = [item.function for item in (loaded(target, NEXT), loaded(target, f"{HEAD}@1.0.0"))]
    (true,) = target.store.evidence.results(functions[:1], functions[1:])
    rosy = [1.0, 48, 48, 0.9, 1.0]
    figures = {**true.figures, "restricted": rosy, "grade": "compatible"}
    target.store.evidence.add(*functions, conditions=true.conditions, settings=true.settings, figures=figures)
    with pytest.raises(PolicyBroken):
        here.maintenance.import_from(target.store)


@pytest.mark.parametrize(
    "other", [{"bn_policy": "running"}, {"cap": 12}, {"seed": 3, "bn_policy": "running"}]
)
def test_figures_under_other_conditions_decide_nothing(
    here: ck.Registry, target: ck.Registry, other: dict[str, Any]
) -> None:
    succeed_measured(target)
    policy(here, **other)
    with pytest.raises((PolicyUndecided, PolicyDataMissing)):
        here.maintenance.import_from(target.store)
    with pytest.raises(PolicyUndecided):
        here.maintenance.import_from(target.store, policy_checks=policy_checks.policy_checks(data=[SPLIT]))
    assert not has(here)


def test_figures_on_a_sample_decide_where_the_images_are_at_hand(
    here: ck.Registry, target: ck.Registry
) -> None:
    succeed(target, nearly)
    policy(target, cap=12)
    policy(here, cap=12)
    assert target.policies.test(NEXT, data=[SPLIT]).passed
    with pytest.raises(PolicyDataMissing):
        here.maintenance.import_from(target.store)
    here.maintenance.import_from(target.store, policy_checks=policy_checks.policy_checks(data=[SPLIT]))
    assert has(here)


def test_a_version_whose_number_lies_does_not_load_and_its_digest_does(target: ck.Registry) -> None:
    succeed(target, nearly)
    digest = str(target.store.resolve(NEXT).digest)
    target.store.references.create(EXTRACTOR, Version.parse("1.0.1"), digest)
    lie = f"{EXTRACTOR}@1.0.1"
    for load in (target.load, lambda item: target.recombine(item, f"{HEAD}@1.0.0")):
        with pytest.raises(VersionUntrue, match="the version number is too small a step"):
            load(lie)
    target.load(f"{EXTRACTOR}@{digest}")
    target.load(lie, verify="never")
    target.load(f"{EXTRACTOR}@1.0.0")


def loaded(registry: ck.Registry, reference: str) -> Any:
    from compatkit.components.loading import load

    return load(registry.store, registry.store.resolve(reference))
