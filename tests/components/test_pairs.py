"""Pairs of a registry: what patterns mean, evidence and channel statistics of all pairs, each file read once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from measured import cell, keep
from sample_components import extractor, head, labels, maps, shared, vector
from small import data_set

import compatkit as ck
from compatkit.components.images import policy_images
from compatkit.contracts.channels import channel_bytes
from compatkit.contracts.contract import FeatureStatistics
from compatkit.contracts.evidence import Cell, figure
from compatkit.contracts.manifest import Manifest, Parent, function_digest
from compatkit.errors import DataError, FormatError, NotFound, UnknownName, UsageError
from compatkit.registry.blobs import Objects
from compatkit.registry.policies import Images
from compatkit.registry.store import Store

CELL = cell(policy="batch")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "parts")


def publish(store: Store, name: str, made: Manifest, value: float = 0.0) -> Manifest:
    payload = store.put_state({"weight": torch.full((1,), value)}, parameters=1)
    store.publish(name, attrs.evolve(made, payload=payload))
    return store.manifest(name)


@pytest.fixture
def registry(store: Store) -> ck.Registry:
    """Two extractors and three heads, one of them auxiliary."""
    dcc = (shared("dcc"),)
    publish(store, "a/one.extractor", extractor(maps(4), anchors=dcc), 1)
    publish(store, "a/one.head", head(maps(4), anchors=dcc), 2)
    publish(store, "a/shared.dcc", head(maps(4), kind="auxiliary_head"), 3)
    publish(store, "b/two.extractor", extractor(maps(8)), 4)
    publish(store, "b/two.head", head(vector(4)), 5)
    return ck.Registry.open(store.root)


def test_patterns_take_the_extractors_of_the_one_and_the_heads_of_the_other(registry: ck.Registry) -> None:
    table = registry.check_all("*", "*")
    assert table.extractors == ("a/one.extractor@1.0.0", "b/two.extractor@1.0.0")
    assert table.heads == ("a/one.head@1.0.0", "a/shared.dcc@1.0.0", "b/two.head@1.0.0")
    words = [[summary.report.word for summary in row] for row in table.summaries]
    assert words == [["promised", "unproven", "adaptable"], ["adaptable", "adaptable", "adaptable"]]
    assert registry.check_all(["a/*", "b/*"], "a/one.head").heads == ("a/one.head@1.0.0",)


def test_a_single_pair_is_the_same_report(registry: ck.Registry) -> None:
    table = registry.check_all("a/*", "a/*")
    report = registry.check("a/one.extractor", "a/one.head")
    assert table.report("a/one.extractor@1.0.0", "a/one.head@1.0.0") == report
    assert (report.extractor, report.head) == ("a/one.extractor@1.0.0", "a/one.head@1.0.0")


def test_what_cannot_be_compared_is_told_by_name(registry: ck.Registry) -> None:
    with pytest.raises(UsageError, match=r"but a/one.head@1\.0\.0 is of kind head. Pass the extractor first"):
        registry.check_all("a/one.head", "a/*")
    with pytest.raises(
        NotFound, match=r"'\*.head' matches 2 components, none of kind extractor or encoder: .* head"
    ):
        registry.check_all("*.head", "*.head")
    with pytest.raises(NotFound, match="nothing"):
        registry.check_all("nothing*", "*")


def test_withdrawn_parts_are_compared_by_their_digest(registry: ck.Registry) -> None:
    digest = registry.store.resolve("a/one.head").digest
    registry.store.withdraw("a/one.head", "1.0.0", "worse")
    assert registry.check("a/one.extractor", f"a/one.head@{digest}").word == "promised"


def measure(store: Store, left: str, right: str, measured: Cell) -> None:
    keep(store, store.manifest(left), store.manifest(right), measured)


def test_evidence_counts_for_the_pairs_that_were_measured(registry: ck.Registry) -> None:
    measure(registry.store, "a/one.extractor", "a/one.head", CELL)
    old = cell("perfect", metric_version="0", policy="batch")
    measure(registry.store, "a/one.extractor", "a/shared.dcc", old)
    table = registry.check_all("*", "*")
    answers = [[summary.report.evidence for summary in row] for row in table.summaries]
    assert answers == [["compatible", "stale", "none"], ["none", "none", "none"]]
    assert table.counts() == {"compatible": 1, "unproven": 1, "adaptable": 4}


def test_measured_own_pairs_count_apart_in_the_headline(store: Store) -> None:
    for number, name in enumerate(("one", "two")):
        publish(store, f"a/{name}.extractor", extractor(maps(4)), number)
        own = (Parent("trained_with", str(store.resolve(f"a/{name}.extractor").digest)),)
        publish(store, f"a/{name}.head", attrs.evolve(head(maps(4)), parents=own), number + 2)
    registry = ck.Registry.open(store.root)
    assert registry.check_all("a/*", "a/*").summary() == "4 pairs: 2 promised, 2 unproven"
    measure(store, "a/one.extractor", "a/one.head", cell("perfect", policy="batch"))
    assert registry.check_all("a/*", "a/*").summary() == "4 pairs: 1 own pair, 1 promised, 2 unproven"
    for left, right in (("two", "two"), ("one", "two"), ("two", "one")):
        measure(store, f"a/{left}.extractor", f"a/{right}.head", cell("perfect", policy="batch"))
    table = registry.check_all("a/*", "a/*")
    assert table.summary() == "4 pairs: 2 own pairs, 2 perfect" and table.counts() == {"perfect": 4}


def test_evidence_counts_under_the_normalization_that_was_asked_about(registry: ck.Registry) -> None:
    """Whatever was measured last: another normalization makes another network of the same two parts."""
    pair, table = ("a/one.extractor", "a/one.head"), ("a/*.extractor", "a/*.head")
    measure(registry.store, *pair, cell("perfect", 90, policy="batch"))
    measure(registry.store, *pair, cell("chance", 10, policy="running"))
    measure(registry.store, *pair, cell("weak", 30, policy="mix:16"))
    for policy, grade in {
        "batch": "perfect",
        "running": "chance",
        "mix:16": "weak",
        "reestimate": "none",
    }.items():
        report = registry.check(*pair, bn_policy=policy)
        assert report.evidence == grade
        assert report.satisfies("compatible") == (policy == "batch")
        assert (
            registry.check_all(*table, bn_policy=policy).report(*(f"{side}@1.0.0" for side in pair)) == report
        )
        message = [finding for finding in report.findings if finding.code == "evidence"]
        assert len(message) == 3, "all are shown"
        assert sum("does not count" in line.remedy for line in message) == (3 if grade == "none" else 2)
    assert registry.check(*pair).evidence == "perfect", "as a matrix measures by default"
    assert registry.check_all(*table).counts() == {"perfect": 1}
    with pytest.raises(UsageError) as caught:
        registry.check(*pair, bn_policy="bathc")
    assert caught.value.subject == "bathc"
    with pytest.raises(UsageError):
        registry.check_all(*table, bn_policy="bathc")


def test_without_batch_normalization_every_figure_counts(registry: ck.Registry) -> None:
    """No policy changes what such a pair computes."""
    measure(
        registry.store, "a/one.extractor", "a/one.head", cell("weak", 30, policy="running", batch_norm=False)
    )
    assert registry.check("a/one.extractor", "a/one.head", bn_policy="batch").evidence == "weak"


def test_figures_under_another_normalization_leave_a_pair_unproven(store: Store) -> None:
    publish(store, "x/left", extractor(), 1)
    publish(store, "x/right", head(), 2)
    measure(store, "x/left", "x/right", cell("perfect", policy="running"))
    report = ck.Registry.open(store.root).check("x/left", "x/right")
    (result,) = [finding for finding in report.findings if finding.code == "unproven"]
    assert report.word == "unproven" and "only measurements under bn_policy running" in result.actual


@pytest.mark.parametrize("known", [("0", "1", "2"), ("0",), ("7",)])
def test_a_recorded_bound_over_classes_that_its_head_does_not_know_is_none(
    store: Store, known: tuple[str, ...]
) -> None:
    """Such bounds were recorded once, with what they made of the grade; the counts of a record grade it again."""
    publish(store, "x/one.extractor", extractor(), 1)
    own = (Parent("trained_with", str(store.resolve("x/one.extractor").digest)),)
    publish(store, "x/one.head", attrs.evolve(head(classes=labels(*known)), parents=own), 2)
    publish(store, "y/two.head", head(norm="batch", classes=labels("0", "1")), 3)
    bound = function_digest(store.manifest("x/one.head"))
    recorded = attrs.evolve(
        cell("undecided", 60, policy="batch", bound=bound), bound=figure(0, 100), difference=(0.4, 0.8)
    )
    measure(store, "x/one.extractor", "y/two.head", recorded)
    registry = ck.Registry.open(store.root)
    expected, message = ("undecided", "bound 0.000") if "1" in known else ("compatible", "no bound measured")
    for heads in ("y/two.head", "*"):  # with and without the head of the bound at hand
        report = registry.check_all("x/one.extractor", heads).report(
            "x/one.extractor@1.0.0", "y/two.head@1.0.0"
        )
        (result,) = [finding for finding in report.findings if finding.code == "evidence"]
        assert report.evidence == expected and message in result.expected
    assert registry.check("x/one.extractor", "y/two.head").evidence == expected
    (measured,) = registry.matrix("x/one.extractor", "y/two.head", fill="none").cells
    assert (measured.grade, measured.state) == (expected, "measured")
    assert (measured.bound is None) == (expected == "compatible")
    assert not any(finding.startswith("unproven") for finding in measured.findings), "it was measured"
    assert any("does not know" in finding for finding in measured.findings) == (expected == "compatible")


WRONG_TESTS = {
    "a data set": data_set("a"),
    "a split alone": data_set("a").test,
    "a name": "a",
    "a number": 3,
    "a list of names": ["a/test"],
    "a list of data sets": [data_set("a")],
    "a mapping to data sets": {"*": data_set("a")},
    "a mapping from numbers": {3: data_set("a").test},
}


@pytest.mark.parametrize("data", WRONG_TESTS.values(), ids=WRONG_TESTS)
def test_a_matrix_takes_test_sets_and_says_what_came(registry: ck.Registry, data: Any) -> None:
    with pytest.raises(UsageError) as caught:
        registry.matrix("a/one.extractor", "a/one.head", data)
    inside = next(iter(data)) if isinstance(data, list) else data
    if isinstance(data, dict):
        inside = next(key if isinstance(key, int) else value for key, value in data.items())
    assert caught.value.subject is inside


@pytest.mark.parametrize("wrong", [3, None, [3], b"a/*", {"a/*": 1}])
def test_parts_are_named_by_texts(registry: ck.Registry, wrong: Any) -> None:
    for ask in (
        lambda: registry.matrix(wrong, "a/*", fill="none"),
        lambda: registry.matrix("a/*", wrong, fill="none"),
        lambda: registry.check_all(wrong, "a/*"),
        lambda: registry.store.select(wrong),
    ):
        with pytest.raises(UsageError) as caught:
            ask()
        assert caught.value.subject == (3 if wrong == [3] else wrong)


def test_adapters_of_a_matrix_are_a_mapping(registry: ck.Registry) -> None:
    with pytest.raises(UsageError) as caught:
        registry.matrix("a/*", "a/*", fill="none", adapters=3)  # type: ignore[arg-type]
    assert caught.value.subject == 3


@pytest.mark.parametrize("data", [data_set("a"), "a/test", ("a/test",), [data_set("a").test], 3])
def test_a_policy_is_decided_on_a_split_or_on_a_name_with_a_digest(registry: ck.Registry, data: Any) -> None:
    with pytest.raises(UsageError) as caught:
        registry.policies.set("a/", "backward", data=data)
    assert caught.value.subject is data and not registry.policies


def test_a_cap_of_a_policy_leaves_no_class_out(registry: ck.Registry) -> None:
    test = data_set("a").test  # three classes
    with pytest.raises(UsageError) as caught:
        registry.policies.set("a/", "backward", data=test, cap=2)
    assert caught.value.subject == 2 and not registry.policies
    assert registry.policies.set("a/", "backward", data=test, cap=3).cap == 3


def test_a_scope_without_a_policy_is_told_with_those_that_have_one(registry: ck.Registry) -> None:
    registry.policies.set("a/", "backward", data=data_set("a").test)
    with pytest.raises(UnknownName) as caught:
        registry.policies["b/*"]
    assert caught.value.subject == "b/*" and "a/*" in str(caught.value)
    assert "b/*" not in registry.policies and registry.policies.get("b/*") is None
    assert "a/*" in registry.policies and registry.policies.get("a/*") == registry.policies["a/*"]


@pytest.mark.parametrize("requested", [data_set("a"), "a/test", [3], ["a/test"]])
def test_images_for_a_policy_come_in_a_list(requested: Any) -> None:
    with pytest.raises(UsageError) as caught:
        policy_images(Images("a/test", data_set("a").test.digest), requested)
    assert caught.value.subject is (requested[0] if isinstance(requested, list) else requested)


def test_a_part_that_only_changed_its_description_keeps_its_evidence(registry: ck.Registry) -> None:
    """Evidence belongs to the function, and both versions have it in one table."""
    store = registry.store
    measure(store, "a/one.extractor", "a/one.head", CELL)
    about = attrs.evolve(store.manifest("a/one.head").about, title="told better")
    store.publish("z/copy.head", attrs.evolve(store.manifest("a/one.head"), about=about))
    table = registry.check_all("a/one.extractor", ["a/one.head", "z/copy.head"])
    assert table.counts() == {"compatible": 2}


def test_another_release_that_computes_the_same_keeps_the_promise_of_one_network(
    registry: ck.Registry,
) -> None:
    left = registry.store.manifest("a/one.extractor")
    own = Parent("trained_with", str(registry.store.resolve("a/one.extractor").digest))
    registry.store.publish("a/own.head", attrs.evolve(registry.store.manifest("a/one.head"), parents=(own,)))
    registry.store.publish(
        "a/one.extractor", attrs.evolve(left, about=attrs.evolve(left.about, title="Again"))
    )
    publish(registry.store, "a/other.extractor", left, 9)
    promises = {
        version: registry.check(version, "a/own.head").promise
        for version in ("a/one.extractor@1.0.0", "a/one.extractor@1.0.1", "a/other.extractor")
    }
    assert list(promises.values()) == ["one-network", "one-network", "shared-head"]
    table = registry.check_all("a/*", "a/own.head")
    assert [row[0].report.promise for row in table.summaries] == [
        "one-network",
        "shared-head",
    ]  # the latest versions
    again = registry.store.manifest("a/one.extractor"), registry.store.manifest("a/own.head")
    assert ck.check(*again).promise == "shared-head"  # the digest of the manifest is all that these two tell
    assert ck.check(*again, own=True).promise == "one-network"


def test_every_manifest_is_read_once_and_no_pair_is_looked_up_alone(
    registry: ck.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(registry.store, "a/one.extractor", "a/one.head", CELL)
    read: Counter[str] = Counter()
    whole = Objects.read

    def counting(self: Objects, digest: str, **options: Any) -> bytes:
        read[digest] += 1
        return whole(self, digest, **options)

    monkeypatch.setattr(Objects, "read", counting)
    ck.Registry(registry.store.root).check_all("*", "*")
    assert set(read.values()) == {1}
    assert len(read) == 6  # the manifests and the result


def with_channels(store: Store, made: Manifest, means: list[float]) -> Manifest:
    """Return the manifest with statistics of four channels kept beside it."""
    edge = store.put_blob(channel_bytes(means, [1.0] * 4))
    known = (FeatureStatistics(0.0, 1.0, 10, {"blob": edge.blob, "bytes": edge.bytes}),)
    statistical = attrs.evolve(made.contract.statistical, features=known)
    return attrs.evolve(made, contract=attrs.evolve(made.contract, statistical=statistical))


def test_channel_statistics_are_read_from_the_registry(store: Store) -> None:
    publish(store, "x/left", with_channels(store, extractor(), [3.0, -3.0, 0.0, 0.0]), 1)
    publish(store, "x/right", with_channels(store, head(), [0.0, 0.0, 0.0, 0.0]), 2)
    publish(store, "x/alike", with_channels(store, head(), [3.0, -3.0, 0.0, 0.0]), 3)
    registry = ck.Registry.open(store.root)
    far = registry.check("x/left", "x/right").findings
    (result,) = [item for item in far if item.code == "statistics-far"]
    assert "the worst of 2 far channels, of 4" in result.actual
    assert "statistics-far" not in {finding.code for finding in registry.check("x/left", "x/alike").findings}


def test_channel_statistics_that_are_none_name_their_owner(store: Store) -> None:
    made = with_channels(store, extractor(), [float("nan")] * 4)
    publish(store, "x/left", made, 1)
    publish(store, "x/right", with_channels(store, head(), [0.0] * 4), 2)
    with pytest.raises(FormatError, match=r"^x/left@1\.0\.0: Channel statistics"):
        ck.Registry.open(store.root).check("x/left", "x/right")


def test_classes_are_compared_with_those_asked_for(store: Store) -> None:
    publish(store, "x/left", extractor(), 1)
    publish(store, "x/right", head(classes=(ck.label("car"), ck.label("auto"))), 2)
    request = attrs.evolve(extractor().contract.data, labels=(ck.label("automobile"),))
    with pytest.raises(DataError, match="'automobile' means the same as both 'car' and 'auto'"):
        ck.Registry.open(store.root).check_all("x/*", "x/*", data=request)
