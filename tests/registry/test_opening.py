"""What an argument may name as another registry: a folder, a Registry or a Store; anything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import compatkit as ck
from compatkit.errors import LayoutError, UsageError
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.store import Store

Publish = Callable[..., Any]
WAYS: dict[str, Callable[[Path], Any]] = {
    "text": str,
    "path": Path,
    "url": lambda root: f"file://{root}",
    "registry": ck.Registry,
    "store": Store.open,
}


def import_from(here: ck.Registry, other: Any) -> Any:
    return here.maintenance.import_from(other)


def repair(here: ck.Registry, other: Any) -> Any:
    return here.maintenance.repair(here.maintenance.verify(), source=other)


def pull(here: ck.Registry, other: Any) -> Any:
    return here.pull(other)


def push(here: ck.Registry, other: Any) -> Any:
    return here.push(other)


def reopen(here: ck.Registry, other: Any) -> Any:
    return ck.Registry(other)


DOORS = [import_from, repair, pull, push, reopen]


@pytest.fixture
def other(tmp_path: Path, publish: Publish) -> Path:
    """Another registry with one component."""
    publish(Store.init(tmp_path / "other"), "a/b")
    return tmp_path / "other"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", WAYS)
def test_a_registry_may_be_named_in_every_way(
    tmp_path: Path, publish: Publish, other: Path, door: Callable[..., Any], way: str
):
    here = ck.Registry.init(tmp_path / "here")
    publish(here.store, "c/d")
    door(here, WAYS[way](other))
    if door in (import_from, pull):
        assert here.store.names() == ["a/b", "c/d"]
    if door is push:
        assert Store.open(other).names() == ["a/b", "c/d"]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("wrong", [5, b"parts", ["parts"], object()], ids=lambda wrong: type(wrong).__name__)
def test_anything_else_is_refused(tmp_path: Path, publish: Publish, door: Callable[..., Any], wrong: Any):
    here = ck.Registry.init(tmp_path / "here")
    publish(here.store, "c/d")
    with pytest.raises(UsageError) as error:
        door(here, wrong)
    assert error.value.subject is wrong


@pytest.mark.parametrize("door", DOORS)
def test_a_folder_that_is_no_registry_is_refused(tmp_path: Path, publish: Publish, door: Callable[..., Any]):
    here = ck.Registry.init(tmp_path / "here")
    publish(here.store, "c/d")
    with pytest.raises(LayoutError):
        door(here, tmp_path)
    if door in (import_from, repair, reopen):  # a remote that cannot be opened, and one that holds images
        with pytest.raises(UsageError):
            door(here, "nothing://bucket/parts")
        with pytest.raises(UsageError):
            door(here, f"oci-layout://{tmp_path}/layout")


@pytest.mark.parametrize("door", [pull, push])
def test_a_copy_takes_no_object_that_requires_signatures(
    tmp_path: Path, publish: Publish, other: Path, door: Callable[..., Any]
):
    here = ck.Registry.init(tmp_path / "here")
    publish(here.store, "c/d")
    strict = attrs.evolve(Store.open(other), trusted=Trusted({}))
    with pytest.raises(UsageError) as error:
        door(here, strict)
    assert error.value.subject == other
    assert ck.Registry(strict).store.trusted is not None


@pytest.mark.parametrize("call", [ck.Registry.init, ck.Registry.open, ck.Sweep.open, ck.load_exported])
def test_a_path_that_is_none_is_refused(call: Callable[..., Any]):
    with pytest.raises(UsageError) as error:
        call(5)
    assert error.value.subject == 5
