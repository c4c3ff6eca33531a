"""verify reports what a load refuses, for every reason that needs no weights; each case is compared with a load."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import data_set

import compatkit as ck
from compatkit.components.splitting import publish_split, split
from compatkit.errors import CompatkitError, UsageError
from compatkit.foundation.codec import dumps, loads
from compatkit.registry.maintenance.check import VerificationReport
from compatkit.registry.names import Version

KWARGS = {"in_chans": 1, "num_classes": 3}
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks, a published adapter and a recombination; only to be copied."""
    registry = ck.Registry.init(tmp_path_factory.mktemp("whole") / "parts")
    for name, cut in (("net", "layer2"), ("early", "layer1")):
        parts = split("resnet8_cifar", cut, kwargs=KWARGS, size=(16, 16), labels=("0", "1", "2"))
        publish_split(registry.store, parts, f"a/{name}")
    images = data_set("left", size=(16, 16)).train
    bridged = registry.recombine("a/early.extractor", "a/net.head", insert_adapters=True, data=images)
    registry.publish(bridged.inserted[1], "a/adapter")
    registry.publish(registry.recombine("a/net.extractor", "a/net.head"), "a/both")
    return registry.store.root


@pytest.fixture
def registry(whole: Path, tmp_path: Path) -> ck.Registry:
    """A copy, for which nothing is remembered on this machine."""
    return ck.Registry(shutil.copytree(whole, tmp_path / "parts"))


def forged(registry: ck.Registry, source: str, change: Change) -> str:
    """Publish a manifest of sound bytes that was changed by hand; return its name."""
    store = registry.store
    value = loads(store.objects.read(str(store.resolve(source).digest)), what="manifest")
    change(value)
    assert store.references.create("forged/part", Version(1, 0, 0), store.put_blob(dumps(value)).blob)
    return "forged/part"


def at(*path: Any, to: Any) -> Change:
    def change(value: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    return change


def both(*changes: Change) -> Change:
    return lambda value: [change(value) for change in changes]


def codes(report: VerificationReport) -> dict[str, set[str]]:
    """Return the faults of each component, and check that nothing else is wrong."""
    found: dict[str, set[str]] = {}
    for fault in report.faults:
        for label in fault.affected or (fault.path,):
            found.setdefault(label, set()).add(fault.code)
    return found


def is_loaded(registry: ck.Registry, name: str) -> bool:
    """Return whether a load accepts a component: the slow and obvious check."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            registry.load(name, verify="always")
        except CompatkitError:
            return False
    return True


EXTRACTOR, HEAD, ADAPTER, BOTH = "a/net.extractor", "a/net.head", "a/adapter", "a/both"
REFUSED = {
    "an unknown model": (HEAD, at("blueprint", "model", to="nonesuch_cifar")),
    "an argument that the network does not take": (HEAD, at("blueprint", "kwargs", "color", to="red")),
    "an argument that is refused": (HEAD, at("blueprint", "kwargs", "pretrained", to=True)),
    "arguments that are too large": (EXTRACTOR, at("blueprint", "kwargs", "in_chans", to=2**30)),
    "a network that is too costly": (EXTRACTOR, at("blueprint", "kwargs", "in_chans", to=2**19)),
    "a cut that the network lacks": (EXTRACTOR, at("blueprint", "split", to="layer9")),
    "weights of another cut": (EXTRACTOR, at("blueprint", "split", to="layer1")),
    "weights of other classes": (HEAD, at("blueprint", "kwargs", "num_classes", to=4)),
    "the other side": (EXTRACTOR, at("blueprint", "side", to="head")),
    "another kind": (EXTRACTOR, at("kind", to="head")),
    "a kind that nothing builds": (EXTRACTOR, at("kind", to="decoder")),
    "a count of parameters": (HEAD, at("payload", "parameters", to=7)),
    "no batch normalization": (EXTRACTOR, at("contract", "protocol", "normalisation", to="none")),
    "classes of an extractor": (
        EXTRACTOR,
        at("contract", "data", "labels", to=[{"name": "x", "same_as": []}]),
    ),
    "too few classes": (HEAD, at("contract", "data", "labels", to=[{"name": "x", "same_as": []}])),
    "an output of other channels": (EXTRACTOR, at("contract", "structural", "outputs", 0, "shape", 1, to=99)),
    "an output of another dtype": (
        EXTRACTOR,
        at("contract", "structural", "outputs", 0, "dtype", to="float64"),
    ),
    "an input of another dtype": (HEAD, at("contract", "structural", "inputs", 0, "dtype", to="int64")),
    "a pooled output with positions": (
        EXTRACTOR,
        at("contract", "structural", "outputs", 0, "pooled", to=True),
    ),
    "an image of three channels": (EXTRACTOR, at("contract", "structural", "inputs", 0, "shape", 1, to=3)),
    "a probe of other channels": (HEAD, at("contract", "statistical", "probe", "shapes", 0, 1, to=5)),
    "an unknown adapter": (ADAPTER, at("blueprint", "model", to="telepathy")),
    "an adapter of other arguments": (ADAPTER, at("blueprint", "kwargs", to={"width": 3})),
    "a recombination without a part": (BOTH, lambda value: value["parents"].pop()),
    "a recombination of parts in another order": (BOTH, lambda value: value["parents"].reverse()),
    "a recombination of an unknown builder": (BOTH, at("blueprint", "builder", to="compatkit")),
}
ELSEWHERE = {
    "an unknown builder": (HEAD, at("blueprint", "builder", to="nowhere")),
    "a builder of a file": (
        HEAD,
        both(at("blueprint", "builder", to="lab"), at("blueprint", "library", to="lab.py 1")),
    ),
    "another version of the library": (
        HEAD,
        both(
            at("blueprint", "kwargs", "num_classes", to=4), at("blueprint", "library", to="compatkit 0.0.1")
        ),
    ),
}
ONLY_BY_LOADING = {
    "other outputs on the probe": (HEAD, at("contract", "statistical", "probe", "sketch", 0, to=1e6)),
    "a range that the weights do not keep": (
        "a/adapter",
        at("contract", "structural", "outputs", 0, "range", to="nonnegative"),
    ),
    "a recombination that contradicts its parts": (BOTH, at("blueprint", "split", to="layer1")),
}


def test_what_loads_is_sound(registry: ck.Registry) -> None:
    for report in (registry.maintenance.verify(), registry.maintenance.verify(load=True)):
        assert report.sound and report.faults == ()


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_load_accepts_is_not_sound(registry: ck.Registry, case: str) -> None:
    name = forged(registry, *REFUSED[case])
    assert not is_loaded(registry, name)
    report = registry.maintenance.verify()
    assert not report.sound and codes(report) == {f"{name}@1.0.0": {"load-refused"}}
    assert codes(registry.maintenance.verify()) == codes(report), "a refusal is not remembered as passed"
    assert registry.maintenance.verify(deep=False).sound, "only the files are checked"
    assert codes(registry.maintenance.verify(load=True)) == codes(report)


@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_cannot_be_loaded_here_is_a_warning(registry: ck.Registry, case: str) -> None:
    name = forged(registry, *ELSEWHERE[case])
    assert not is_loaded(registry, name)
    for report in (registry.maintenance.verify(), registry.maintenance.verify(load=True)):
        assert report.sound and codes(report) == {f"{name}@1.0.0": {"load-elsewhere"}}


@pytest.mark.parametrize("case", ONLY_BY_LOADING)
def test_what_depends_on_the_weights_is_seen_by_loading(registry: ck.Registry, case: str) -> None:
    """These are the bounds that the documentation names; a range is none of an adapter's own checks."""
    name = forged(registry, *ONLY_BY_LOADING[case])
    assert registry.maintenance.verify().sound
    report = registry.maintenance.verify(load=True)
    assert report.sound == is_loaded(registry, name)


def test_a_withdrawn_version_and_a_damaged_one_are_not_loaded(registry: ck.Registry) -> None:
    name = forged(registry, *REFUSED["an unknown model"])
    registry.withdraw(f"{name}@1.0.0", reason="no such network")
    weights = registry.store.objects.path(registry.store.manifest(EXTRACTOR).payload.file.blob)
    weights.chmod(0o644)
    weights.write_bytes(b"x")
    found = codes(registry.maintenance.verify())
    assert all(f"{name}@1.0.0" != label for label in found)
    assert not any(
        code.startswith("load-") for label, codes in found.items() for code in codes if "both" not in label
    )


def test_networks_that_are_alike_are_built_once_and_are_remembered(
    registry: ck.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compatkit.components import loadable

    for number in range(5):
        change = at("about", "title", to=f"number {number}")
        store = registry.store
        value = loads(store.objects.read(str(store.resolve(HEAD).digest)), what="manifest")
        change(value)
        assert store.references.create(
            f"many/part{number}", Version(1, 0, 0), store.put_blob(dumps(value)).blob
        )
    built: list[str] = []
    rebuilt = loadable.rebuilt
    monkeypatch.setattr(
        loadable,
        "rebuilt",
        lambda blueprint, *rest, **more: (built.append(blueprint.side), rebuilt(blueprint, *rest, **more))[1],
    )
    assert registry.maintenance.verify().sound
    assert sorted(built) == ["adapter", "extractor", "extractor", "head", "head"]
    built.clear()
    assert registry.maintenance.verify().sound and built == []
    ck.Registry(registry.store.root).load(HEAD)
    assert registry.maintenance.verify().sound


def test_loading_needs_whole_files(registry: ck.Registry) -> None:
    with pytest.raises(UsageError):
        registry.maintenance.verify(deep=False, load=True)
