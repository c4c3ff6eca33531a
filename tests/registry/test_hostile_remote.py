"""A remote with a copy of this registry, changed by a stranger: a pull adds, and takes nothing away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import fsspec
import pytest
from far import EXTRACTOR, HEAD, content, write

from compatkit.contracts.manifest import function_digest
from compatkit.errors import SignatureError
from compatkit.foundation.codec import dumps
from compatkit.registry.copy.report import TransferReport
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.pushpull import import_components, pull
from compatkit.registry.signing.changes import sign_changes
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signatures import LIMIT_PER_MANIFEST
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Distrust, Trusted
from compatkit.registry.signing.verify import verify
from compatkit.registry.store import Store

Publish = Callable[..., Any]
STRANGER = SigningKey.new("mallory")
CONDITIONS = {"metric": "accuracy"}


def state(store: Store) -> dict[str, Any]:
    """Return what every reference and policy of the registry means, read anew."""
    reader = Store.open(store.root)
    names = [EXTRACTOR, HEAD]
    functions = [function_digest(reader.manifest(digest)) for _, digest in newest(reader)]
    results = reader.evidence.results(functions[:1], functions[1:])
    return {
        "versions": {name: [str(version) for version in reader.versions(name)] for name in names},
        "digests": {
            f"{name}@{version}": reader.references.digest(name, version)
            for name, version in reader.references.each()
            if name in names
        },
        "aliases": {name: reader.aliases(name) for name in names},
        "moves": {name: reader.alias_log(name, "prod") for name in names},
        "withdrawn": {name: reader.references.withdrawn(name) for name in names},
        "policies": reader.policies.all(),
        "result": results[-1].digest if results else None,
    }


@pytest.fixture
def mine(store: Store, source: Store, key: SigningKey, trusted: Trusted) -> Store:
    """A registry in which everything is signed, and which a stranger has a copy of."""
    sign(source, ["digits/*"], key, every=True)
    sign_changes(source, [HEAD], key)
    shutil.rmtree(store.root)
    shutil.copytree(source.root, store.root)
    return Store.open(store.root)


@pytest.fixture
def hostile(source: Store, publish: Publish) -> Store:
    """The stranger's copy."""
    later = "2030-01-01T00:00:00+00:00"
    publish(source, HEAD, 9, version="3.0.0", kind="head")
    publish(source, EXTRACTOR, 9, version="2.0.0")
    source.set_alias(HEAD, "prod", "3.0.0")
    source.set_alias(HEAD, "canary", "3.0.0")
    source.withdraw(EXTRACTOR, "1.0.0", "use mine")
    source.withdraw(HEAD, "2.0.0", "use mine")
    restored = dumps({"action": "restore", "reason": "it was fine", "time": later})
    write(source, f"refs/{HEAD}/@tombstones/1.0.0~2", restored)
    source.set_policy("digits/*", None)
    shutil.rmtree(source.root / f"refs/{HEAD}/@log/old")  # a log that is shorter than here
    extractor, head = (source.manifest(digest) for _, digest in newest(source))
    functions = function_digest(extractor), function_digest(head)
    source.evidence.record(*functions, CONDITIONS, dumps({"accuracy": 1.0}))
    sign(source, [f"{HEAD}@3.0.0"], STRANGER)
    sign_changes(source, [HEAD, EXTRACTOR], STRANGER)
    digest = str(source.references.digest(EXTRACTOR, source.references.versions(EXTRACTOR)[0]))
    for number in range(LIMIT_PER_MANIFEST - len(source.signatures.files(digest))):
        name = f"{EXTRACTOR}@1.0.{number}"
        source.signatures.add(digest, STRANGER.sign(digest, name).to_bytes())
    return source


def newest(store: Store) -> list[tuple[str, str]]:
    """Return the versions that the owner had last, by digest."""
    return [
        (name, str(store.references.digest(name, store.references.versions(name)[position])))
        for name, position in ((EXTRACTOR, 0), (HEAD, 1))
    ]


def bring(way: str, target: Store, hostile: Store, memory: str, settings: TransferSettings) -> TransferReport:
    if way == "import":
        return import_components(hostile, target, settings=settings)
    if way == "folder":
        return pull(target, str(hostile.root), settings=settings)
    system = fsspec.filesystem("memory")
    for path, data in content(hostile.root).items():
        system.pipe_file(f"{memory}/{path}", data)
    for path in (
        "compatkit.json",
        *(f"policies/{file.name}" for file in (hostile.root / "policies").iterdir()),
    ):
        system.pipe_file(f"{memory}/{path}", (hostile.root / path).read_bytes())
    return pull(target, memory, settings=settings)


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("way", ["folder", "memory", "import"])
def test_nothing_that_stood_here_changes_and_what_was_offered_is_told(
    mine: Store, hostile: Store, memory: str, trusted: Trusted, way: str, signed: bool
):
    before, meaning = content(mine.root), state(mine)
    distrusted = {STRANGER.public.id: Distrust("2026-01-01T00:00:00Z", "a stranger")}
    keys = attrs.evolve(trusted, distrusted=distrusted)
    settings = TransferSettings().with_trust(keys if signed else False)
    if signed and way == "import":
        with pytest.raises(SignatureError):  # all or nothing
            bring(way, mine, hostile, memory, settings)
        report = None
    else:
        report = bring(way, mine, hostile, memory, settings)
    after = content(mine.root)
    assert {path: after.get(path) for path in before} == before
    told = state(mine)
    for name in (EXTRACTOR, HEAD):
        alive = [str(version) for version in told["versions"][name]]
        assert set(meaning["versions"][name]) <= set(alive)
        assert "prod" not in told["aliases"][name] or told["aliases"][name]["prod"] == "2.0.0"
    for field in ("moves", "withdrawn", "policies", "result"):
        assert told[field] == meaning[field], field
    assert meaning["digests"].items() <= told["digests"].items()
    assert meaning["aliases"][HEAD].items() <= told["aliases"][HEAD].items()
    assert all(verdict is not None for verdict in verify(mine, f"{EXTRACTOR}@1.0.0", keys))
    assert examine(mine).sound
    if report is None:
        return
    offered = {(offer.kind, offer.what): offer for offer in report.offered}
    assert {what for kind, what in offered if kind == "withdrawal"} == {f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"}
    assert {what for kind, what in offered if kind == "restoration"} == {f"{HEAD}@1.0.0"}
    if signed:
        assert all(offer.error is not None for offer in offered.values() if offer.kind != "results")
        assert {refusal.what for refusal in report.refused} == {f"{EXTRACTOR}@2.0.0", f"{HEAD}@3.0.0"}
        assert [text.partition(" is ")[0] for text in report.diverged] == [f"{HEAD}:canary", f"{HEAD}:prod"]
        assert "canary" not in told["aliases"][HEAD]
    else:
        assert ("alias", f"{HEAD}:prod") in offered
        assert ("results", "1 results") in offered
        assert told["aliases"][HEAD]["canary"] == "3.0.0"  # new: nothing stood in its place


def test_a_change_that_is_signed_by_a_trusted_key_is_followed_when_asked_for(
    mine: Store, source: Store, memory: str, key: SigningKey, trusted: Trusted
):
    attrs.evolve(source, key=key).set_alias(HEAD, "prod", None)
    attrs.evolve(source, key=key).withdraw(EXTRACTOR, "1.0.0", "a bug")
    signed = TransferSettings().with_trust(trusted)
    offered = pull(mine, str(source.root), settings=signed).offered
    assert [(offer.what, offer.option, offer.error) for offer in offered] == [
        (f"{EXTRACTOR}@1.0.0", "--follow-withdrawals", None),
        (f"{HEAD}:prod", "--follow-aliases", None),
    ]
    report = pull(mine, str(source.root), settings=signed.following())
    assert report.aliases == [f"{HEAD}:prod"] and not report.offered
    assert [str(withdrawal.reference) for withdrawal in report.withdrawn] == [f"{EXTRACTOR}@1.0.0"]
    assert content(mine.root) == content(source.root)


@pytest.mark.parametrize("place", ["alias", "number", "component", "bytes"])
def test_a_signed_move_counts_for_one_entry_only(
    mine: Store, source: Store, key: SigningKey, trusted: Trusted, place: str
):
    """A signature of a move is of its path too: it cannot be replayed on another alias, number or component."""
    attrs.evolve(source, key=key).set_alias(HEAD, "old", "2.0.0")
    path = f"refs/{HEAD}/@log/old/3"
    data = (source.root / path).read_bytes()
    if place == "bytes":
        (source.root / path).chmod(0o644)
        (source.root / path).write_bytes(data.replace(b'"time":"2', b'"time":"3'))
    else:
        target = {
            "alias": f"refs/{HEAD}/@log/prod/3",
            "number": f"refs/{HEAD}/@log/old/4",
            "component": f"refs/{EXTRACTOR}/@log/old/1",
        }[place]
        (source.root / path).unlink()
        write(source, target, data)
        if place == "number":
            write(source, path, data.replace(b"2.0.0", b"1.0.0"))
    before = content(mine.root)
    report = pull(mine, str(source.root), settings=TransferSettings().with_trust(trusted).following())
    assert not report.aliases
    after = content(mine.root)
    assert {path: after.get(path) for path in before} == before and examine(mine).sound


def test_a_withdrawn_version_arrives_withdrawn_or_not_at_all(
    tmp_path: Path, source: Store, publish: Publish, key: SigningKey, trusted: Trusted
):
    """Between its name and its tombstone there is no moment at which it could be loaded."""
    from compatkit.registry import disk as durable

    target, seen = Store.init(tmp_path / "target"), list[bool]()

    def watch(operation: str, path: Path) -> None:
        if (target.root / f"refs/{HEAD}/@versions/1.0.0").exists():
            seen.append((target.root / f"refs/{HEAD}/@tombstones/1.0.0").exists())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable, "step", watch)
        pull(target, str(source.root))
    assert seen and all(seen)
    sign(source, ["digits/*"], key, every=True)
    strict = Store.init(tmp_path / "strict")
    report = pull(strict, str(source.root), settings=TransferSettings().with_trust(trusted))
    assert (report.refused, [offer.what for offer in report.offered if offer.kind == "version"]) == (
        [],
        [f"{HEAD}@1.0.0"],
    )
    assert [str(version) for version in strict.references.versions(HEAD)] == ["2.0.0"]
    assert json.loads(json.dumps(report.to_json()))["offered"][0]["code"] == "unsigned"
