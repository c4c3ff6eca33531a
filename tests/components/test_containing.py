"""A registry as a container: names, components, versions, aliases, withdrawals, words."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch
from torch import nn

import compatkit as ck
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.manifest import About
from compatkit.errors import AliasMoved, InvalidName, NotFound, UsageError

HEAD = "nets/a.head"


@pytest.fixture
def registry(tmp_path: Path) -> ck.Registry:
    """Two parts of a small network; of the head a second version with another title."""
    made = ck.Registry.init(tmp_path / "parts")
    kwargs = {"in_chans": 1, "num_classes": 3}
    parts = split("resnet8_cifar", "layer2", kwargs=kwargs, size=(16, 16), labels=("crow", "dog", "eel"))
    publish_split(made.store, parts, "nets/a")
    about = About(title="Animals of the North", tags={"domain": "animals"})
    made.store.publish(HEAD, attrs.evolve(made.store.manifest(HEAD), about=about))
    return made


def test_names_are_walked_over_counted_and_looked_for(registry: ck.Registry) -> None:
    assert list(registry) == ["nets/a.extractor", HEAD] == registry.store.names() and len(registry) == 2
    for name in registry:
        assert name in registry and registry[name].name == name
    for item in (HEAD, f"{HEAD}@1.0.0", f"{HEAD}@^1"):
        assert item in registry
    for missing in ("nets/b.head", f"{HEAD}@2.0.0", f"{HEAD}:prod", "no name!", "", 5, None):
        assert missing not in registry
    assert registry.get("nets/b.head") is None
    with pytest.raises(NotFound) as error:
        registry["nets/a.hed"]
    assert error.value.code == "not-found"
    with pytest.raises(InvalidName) as error:
        registry["no name!"]
    assert error.value.code == "invalid-name"


def test_an_empty_registry_is_an_empty_container(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    assert len(registry) == 0 and list(registry) == [] and registry.search() == []
    assert "0 components" in repr(registry)


def test_a_component_tells_what_it_is_and_loads(registry: ck.Registry) -> None:
    result = registry[HEAD]
    assert (
        isinstance(result, ck.Component)
        and result == registry.get(f"{HEAD}@1.0.1") != registry[f"{HEAD}@1.0.0"]
    )
    assert (result.name, result.version, result.kind, result.reference) == (
        HEAD,
        "1.0.1",
        "head",
        f"{HEAD}@1.0.1",
    )
    assert str(result) == result.reference and result.tags == {"domain": "animals"}
    assert [label.name for label in result.labels] == ["crow", "dog", "eel"] and result.digest.startswith(
        "sha256:"
    )
    module = result.load(verify="always")
    assert isinstance(module, nn.Module) and not module.training
    features = torch.zeros(2, 32, 8, 8)
    with torch.no_grad():
        assert torch.equal(module(features), registry.load(HEAD)(features))
    assert (
        registry.recombine(registry["nets/a.extractor"].reference, result.reference).labels == result.labels
    )


def test_versions_aliases_and_withdrawals(registry: ck.Registry) -> None:
    assert registry.versions(HEAD) == ["1.0.0", "1.0.1"] and registry.store.aliases(HEAD) == {}
    registry.alias(HEAD, "prod", "1.0.0")
    registry.alias(HEAD, "prod", "1.0.1", expected="1.0.0")
    assert registry.store.aliases(HEAD) == {"prod": "1.0.1"} and registry[f"{HEAD}:prod"].version == "1.0.1"
    with pytest.raises(AliasMoved) as moved:
        registry.alias(HEAD, "prod", "1.0.0", expected="1.0.0")
    assert (moved.value.code, moved.value.subject) == ("alias-moved", "prod")
    registry.alias(HEAD, "prod", None)
    assert registry.store.aliases(HEAD) == {} and f"{HEAD}:prod" not in registry
    for wrong in (
        lambda: registry.alias(HEAD, "prod", "3.0.0"),
        lambda: registry.alias("nets/b.head", "prod", "1.0.0"),
    ):
        with pytest.raises(NotFound):
            wrong()
    digest = registry[HEAD].digest
    registry.withdraw(f"{HEAD}@1.0.1", reason="trained on the test set")
    assert registry.versions(HEAD) == ["1.0.0"] and registry[HEAD].version == "1.0.0"
    assert registry[f"{HEAD}@{digest}"].digest == digest
    with pytest.raises(NotFound, match="trained on the test set"):
        registry[f"{HEAD}@1.0.1"]
    registry.withdraw(f"{HEAD}@1.0.0", reason="the last one")
    assert list(registry) == ["nets/a.extractor"] and len(registry) == 1 and HEAD not in registry


@pytest.mark.parametrize(
    ("reference", "reason"), [(HEAD, "why"), (f"{HEAD}@^1", "why"), (f"{HEAD}@1.0.0", " ")]
)
def test_a_withdrawal_names_its_version_and_reason(
    registry: ck.Registry, reference: str, reason: str
) -> None:
    with pytest.raises(UsageError) as error:
        registry.withdraw(reference, reason=reason)
    assert error.value.code == "usage" and registry.versions(HEAD) == ["1.0.0", "1.0.1"]


def test_words_are_looked_for(registry: ck.Registry) -> None:
    assert [str(component) for component in registry.search("north animals")] == [f"{HEAD}@1.0.1"]
    assert registry.search("north", kind="extractor") == []
    assert registry.search(text="north") == registry.search("north")
    assert "Animals of the North" in repr(registry.search("north"))
