"""The Hugging Face Hub's own client against a hub on loopback: few commits, each conditional on the one before.

The real Hub was never asked: that it stores large files elsewhere (LFS, Xet), limits rates and checks tokens is not
shown here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from far import EXTRACTOR, HEAD, Fault, content
from hub import Repository, hub

from compatkit.errors import EnvironmentFailure, IntegrityError, LayoutError, UsageError, VersionExists
from compatkit.registry.blobs import blob_path
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.pushpull import pull, push
from compatkit.registry.store import Store
from compatkit_plugins.remotes.hf import HubStore

pytestmark = pytest.mark.timeout(120)  # a server that hangs must not hang the tests
Publish = Callable[..., Any]
REMOTE = "hf://datasets/user/parts/team"


@pytest.fixture
def repository() -> Repository:
    made = Repository()
    made.files[".gitattributes"] = b"* -text\n"
    return made


@pytest.fixture
def options(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """How the hub on loopback is reached, and it alone; no user's token is read."""
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    with hub(parts=repository) as endpoint:
        yield {"endpoint": endpoint, "token": False}
        close_session()


def inside(repository: Repository) -> dict[str, bytes]:
    files = {
        path.removeprefix("team/"): data
        for path, data in repository.files.items()
        if path.startswith("team/")
    }
    return {path: data for path, data in files.items() if path != "compatkit.json"}


@pytest.mark.parametrize("remote", [REMOTE, f"{REMOTE.replace('/parts', '/parts@main')}"])
def test_what_is_pushed_and_pulled_is_the_same_byte_by_byte(
    store: Store, source: Store, repository: Repository, options: dict[str, Any], remote: str
):
    sent = push(source, remote, options=options).check()
    assert len(sent.created) == 3 and inside(repository) == content(source.root)
    pulled = pull(store, remote, options=options).check()
    assert content(store.root) == content(source.root) and examine(store).sound
    assert (pulled.results, pulled.signatures) == (1, 1)
    commits = len(repository.commits)
    assert push(source, remote, options=options).check().created == [] and len(repository.commits) == commits


def test_many_files_are_one_commit(source: Store, repository: Repository, options: dict[str, Any]):
    push(source, REMOTE, options=options)
    result = [message.removeprefix("compatkit: ") for message in repository.commits[1:]]
    assert result[:2] == ["Add 1 entries", "Add 7 objects"], "what makes it a registry, and all blobs"
    assert "Add 3 entries" in result, "all versions at once, after the blobs"
    assert result.index("Add 7 objects") < result.index("Add 3 entries")
    assert len(result) < len(repository.files) / 1.4


@pytest.mark.parametrize("remote", ["hf://user/parts/team", "hf://models/user/parts/team"])
def test_a_model_repository_is_a_remote_too(
    store: Store, source: Store, repository: Repository, options: dict[str, Any], remote: str
):
    push(source, remote, options=options).check()
    pull(store, remote, options=options).check()
    assert content(store.root) == content(source.root) == inside(repository)


def test_the_head_of_a_repository_can_be_the_registry(
    store: Store, source: Store, repository: Repository, options: dict[str, Any]
):
    push(source, "hf://datasets/user/parts", options=options).check()
    pull(store, "hf://datasets/user/parts/", options=options).check()
    assert content(store.root) == content(source.root) and ".gitattributes" in repository.files


def test_a_push_that_is_cut_off_at_any_call_goes_on(
    source: Store, repository: Repository, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    whole, at, fault = content(source.root), 0, Fault(monkeypatch)
    while True:
        repository.files = {".gitattributes": b""}
        fault.calls.clear()
        fault.at = at
        try:
            push(source, REMOTE, options=options).check()
            break
        except EnvironmentFailure:
            for path, data in inside(repository).items():
                if "/@versions/" in path:
                    assert blob_path(data.decode().split()[0]) in inside(repository)
        fault.mend()
        push(source, REMOTE, options=options).check()
        assert inside(repository) == whole
        at += 5
    assert at >= 20


def test_a_pusher_who_is_slower_loses_and_overwrites_nothing(
    tmp_path: Path, source: Store, repository: Repository, options: dict[str, Any], publish: Publish
):
    rival = Store.init(tmp_path / "rival")
    theirs = publish(rival, HEAD, 50, version="2.0.0")

    def come_first() -> None:
        if any("@versions" in path for path in repository.files) or not any(
            "blobs" in path for path in repository.files
        ):
            return
        repository.before = lambda: None
        push(rival, REMOTE, options=options).check()

    repository.before = come_first
    sent = push(source, REMOTE, options=options)
    assert [(refusal.what, type(refusal.error)) for refusal in sent.refused] == [
        (f"{HEAD}@2.0.0", VersionExists)
    ]
    here = Store.init(tmp_path / "here")
    pull(here, REMOTE, options=options).check()
    assert here.resolve(f"{HEAD}@2.0.0") == theirs and EXTRACTOR in here.names() and examine(here).sound


def test_who_always_comes_second_gives_up(source: Store, repository: Repository, options: dict[str, Any]):
    remote = locate(REMOTE, options)
    assert isinstance(remote, Files) and isinstance(remote.store, HubStore)
    repository.before = lambda: repository.commits.append("somebody else's")
    with pytest.raises(EnvironmentFailure, match="other commits came first in 10 attempts"):
        remote.store.create("refs/a/@versions/1.0.0", b"1\n")


def test_tampering_is_refused(store: Store, source: Store, repository: Repository, options: dict[str, Any]):
    push(source, REMOTE, options=options)
    path = f"team/{blob_path(source.manifest(HEAD).payload.file.blob)}"
    repository.files[path] = repository.files[path][:-1] + b"?"
    pulled = pull(store, REMOTE, options=options)
    assert [refusal.what for refusal in pulled.refused] == [f"{HEAD}@2.0.0"]
    assert isinstance(pulled.refused[0].error, IntegrityError) and f"{REMOTE}/blobs" in str(
        pulled.refused[0].error
    )


@pytest.mark.parametrize(
    ("remote", "error", "message"),
    [
        ("hf://datasets/user/none", LayoutError, "is not a registry"),
        (REMOTE, LayoutError, "is not a registry"),
        ("hf://datasets/user", UsageError, "hf://datasets/USER/NAME"),
        ("hf://nonsense", UsageError, "hf://datasets/USER/NAME"),
    ],
)
def test_what_is_wrong_with_an_address_is_told(
    store: Store, options: dict[str, Any], remote: str, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        pull(store, remote, options=options)


def test_a_repository_that_does_not_exist_is_not_made(source: Store, options: dict[str, Any]):
    with pytest.raises(EnvironmentFailure, match="hf://datasets/user/none"):
        push(source, "hf://datasets/user/none", options=options)
