"""What only some users need may be missing: the message names what brings it, and the rest works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from far import content, export, fill, import_layout
from fsspec.registry import _registry as known

from compatkit.errors import MissingDependency
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.store import Store

Publish = Callable[..., Any]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a library be as if it were not installed."""

    def hide(library: str) -> None:
        for name in [module for module in sys.modules if module.partition(".")[0] == library]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, library, None)
        for protocol in ("s3", "hf"):
            monkeypatch.delitem(
                known, protocol, raising=False
            )  # a class that was found is not looked for again

    return hide


@pytest.mark.parametrize(
    ("library", "remote", "message"),
    [
        ("fsspec", "s3://bucket/team", r"pip install 'compatkit\[remotes\]'.*fsspec"),
        ("fsspec", "memory://team", r"pip install 'compatkit\[remotes\]'.*fsspec"),
        ("urllib3", "oci://host/team", r"urllib3.*pip install 'compatkit\[remotes\]'"),
        ("s3fs", "s3://bucket/team", r"s3fs.*pip install 'compatkit\[remotes\]'"),
        (
            "huggingface_hub",
            "hf://datasets/user/name",
            r"huggingface_hub.*pip install 'compatkit\[remotes\]'",
        ),
        ("paramiko", "sftp://host/team", r"paramiko.*pip install 'compatkit\[sftp\]'"),
        ("requests", "https://host/team", r"requests.*pip install 'compatkit\[remotes\]'"),
        ("requests", "webdavs://host/team", r"requests.*pip install 'compatkit\[remotes\]'"),
    ],
)
def test_a_remote_names_the_extra_that_brings_its_library(
    tmp_path: Path, store: Store, without: Callable[[str], None], library: str, remote: str, message: str
):
    without(library)
    for move in (
        lambda: push(store, remote),
        lambda: pull(store, remote),
        lambda: clone(remote, tmp_path / "copy"),
    ):
        with pytest.raises(MissingDependency, match=message) as error:
            move()
        assert (error.value.code, error.value.exit_code) == ("missing-dependency", 4)
    assert not (tmp_path / "copy").exists()


def test_folders_and_layouts_need_no_library(
    tmp_path: Path, store: Store, publish: Publish, without: Callable[[str], None]
):
    for library in ("fsspec", "s3fs", "huggingface_hub", "cryptography"):
        without(library)
    source = fill(Store.init(tmp_path / "source"), publish)
    push(source, str(tmp_path / "far")).check()
    pull(store, str(tmp_path / "far")).check()
    assert content(store.root) == content(source.root)
    export(source, tmp_path / "layout").check()
    import_layout(Store.init(tmp_path / "other"), tmp_path / "layout").check()


def test_keys_and_what_requires_them_name_the_extra_before_anything_is_done(
    tmp_path: Path, without: Callable[[str], None]
):
    key = SigningKey.new("alice").public.id
    without("cryptography")
    for use in (lambda: SigningKey.new("bob"), lambda: TransferSettings().with_trust(key)):
        with pytest.raises(MissingDependency, match=r"pip install 'compatkit\[signing\]'") as error:
            use()
        assert error.value.exit_code == 4
