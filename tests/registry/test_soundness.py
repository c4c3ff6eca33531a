"""Every kind of damage is found, alone, with its code and whoever it concerns; a look changes nothing."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from damages import (
    EXTRACTOR,
    HEAD,
    NEW,
    OLD,
    TOP,
    USERS,
    Damage,
    Parts,
    build,
    manifest_of,
    overwrite,
    put,
    rows,
    table,
    tensor_file,
    weights,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compatkit.errors import InvalidName, LayoutError, NotFound
from compatkit.foundation.codec import dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.maintenance.check import Fault, VerificationReport, examine, open_damaged
from compatkit.registry.maintenance.faults import CODES
from compatkit.registry.store import Store

EVERY = table()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A sound registry with one of everything; only to be copied."""
    return build(tmp_path_factory.mktemp("whole") / "parts")


@pytest.fixture
def parts(whole: Parts, tmp_path: Path) -> Parts:
    return whole.copy(tmp_path / "parts")


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """Return everything that a change could change: names, modes, times and contents."""
    result: dict[str, tuple[Any, ...]] = {}
    for path in (root, *sorted(root.rglob("*"))):
        state = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(state.st_mode) and os.access(path, os.R_OK) else b""
        result[str(path)] = state.st_mode, state.st_nlink, state.st_mtime_ns, content
    return result


def lasting_faults(soundness: VerificationReport) -> list[Fault]:
    """Return the faults without what lies in ``tmp``, ``trash`` and ``quarantine``."""
    return [fault for fault in soundness.faults if fault.code not in ("drafts", "trash", "quarantine")]


def only(soundness: VerificationReport) -> Fault:
    (fault,) = lasting_faults(soundness)
    return fault


def test_a_whole_registry_is_sound(whole: Parts) -> None:
    report = examine(whole.store)
    assert report.sound and report.faults == ()
    assert (report.versions, report.manifests, report.results, report.blobs) == (4, 4, 1, 10)
    assert report.bytes == sum(
        path.stat().st_size for path in (whole.root / "blobs").rglob("*") if path.is_file()
    )


@pytest.mark.case("A9", "C1", "C6", "E1", "B6")
@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_of_cycles_is_afterwards_as_it_was(whole: Parts, enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(NotFound):
            examine(whole.store, patterns=["no/such"])
        examine(whole.store)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize(("damage", "place"), EVERY)
def test_a_damage_is_found_alone_and_names_whoever_it_concerns(
    parts: Parts, damage: Damage, place: str
) -> None:
    path = parts.path(place)
    damage.do(parts.root / path)
    report = examine(parts.store)
    fault = only(report)
    assert fault.code == damage.code and fault.what and fault.remedy
    assert report.sound == (CODES[damage.code].severity != "error")
    where = parts.path(damage.elsewhere.format(path) if damage.elsewhere == "{}" else damage.elsewhere)
    assert Path(fault.path).match(where)
    users = damage.whose or USERS.get(place.partition("/")[0], "")
    assert users in ("", "-") or users in fault.affected
    assert loads(dumps(report.to_json()), what="JSON")["faults"]


@pytest.mark.parametrize("place", ["weights", "parent weights", "run", "result", "parent"])
def test_everything_else_stays_readable(parts: Parts, place: str) -> None:
    overwrite(parts.root / parts.path(place), b"x")
    affected, store = set(only(examine(parts.store)).affected), parts.store
    for name in store.names():
        for version in store.versions(name):
            if (reference := f"{name}@{version}") not in affected:
                assert store.read_blob(store.manifest(reference).payload.file.blob, verify="always")


@pytest.mark.case("A9")
def test_swapped_blobs_are_both_found(parts: Parts) -> None:
    first, second = (parts.root / parts.path(name) for name in ("weights", "parent weights"))
    first.rename(parts.root / "x")
    second.rename(first)
    (parts.root / "x").rename(second)
    result = examine(parts.store).faults
    assert [match.code for match in result] == ["blob-digest"] * 2
    assert {(*match.affected,) for match in result} == {(TOP,), (NEW,)}
    assert all(
        parts.blobs["weights"] in match.what and parts.blobs["parent weights"] in match.what
        for match in result
    )


def test_one_blob_concerns_all_who_use_it(parts: Parts) -> None:
    store = parts.store
    payload = store.manifest(TOP).payload
    store.publish("other/twin", manifest_of(payload))
    (parts.root / parts.path("weights")).unlink()
    assert set(only(examine(store)).affected) == {TOP, "other/twin@1.0.0"}


def test_a_quick_look_reads_no_weights_but_their_headers(parts: Parts) -> None:
    path = parts.root / parts.path("weights")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    overwrite(path, bytes(data))
    report = examine(parts.store, deep=False)
    assert report.sound and not report.deep and report.bytes < len(data)
    data[8] = ord("#")
    overwrite(path, bytes(data))
    assert only(examine(parts.store, deep=False)).code == "payload-header"
    overwrite(path, bytes(data[:-1]))
    assert only(examine(parts.store, deep=False)).code == "blob-size"
    path.unlink()
    assert only(examine(parts.store, deep=False)).code == "blob-missing"
    overwrite(parts.root / parts.path("parent"), b"{}")
    assert {fault.code for fault in examine(parts.store, deep=False).faults} == {
        "blob-missing",
        "blob-digest",
    }


def test_patterns_look_only_at_what_they_name_and_what_that_needs(parts: Parts) -> None:
    for place in ("weights", "old weights", "run"):
        overwrite(parts.root / parts.path(place), b"x")
    assert {line.path for line in lasting_faults(examine(parts.store))} == {
        parts.path(name) for name in ("weights", "old weights", "run")
    }
    assert only(examine(parts.store, patterns=[OLD])).path == parts.path("old weights")
    assert lasting_faults(examine(parts.store, patterns=[NEW, f"{HEAD}@2.*"])) == []
    assert len(lasting_faults(examine(parts.store, patterns=["parts/*.head"]))) == 2
    report = examine(parts.store, patterns=["parts/*.head", "*.extractor"])
    assert len(lasting_faults(report)) == 3 and report.results == 1
    overwrite(parts.root / parts.path("result"), b"x")
    assert parts.path("result") in {fault.path for fault in examine(parts.store, patterns=[NEW]).faults}
    assert parts.path("result") not in {fault.path for fault in examine(parts.store, patterns=[OLD]).faults}


@pytest.mark.parametrize("pattern", ["nobody/*", f"{HEAD}@7.0.0", "parts"])
def test_a_pattern_that_matches_nothing_is_an_error(whole: Parts, pattern: str) -> None:
    with pytest.raises(NotFound, match=r"matches no component.*compatkit ls"):
        examine(whole.store, patterns=[pattern])


@pytest.mark.parametrize("pattern", [f"{HEAD}:prod", f"{HEAD}@^1"])
def test_a_pattern_is_no_alias_or_range(whole: Parts, pattern: str) -> None:
    with pytest.raises(InvalidName, match="not an alias"):
        examine(whole.store, patterns=[pattern])


def put_manifest(store: Store, name: str, data: bytes) -> None:
    """Give bytes a name and a version without looking at them."""
    from compatkit.registry.names import Version

    store.references.create(name, Version(1, 0, 0), store.put_blob(data).blob)


def changed_manifest(**changes: Any) -> Callable[[Parts], bytes]:
    return lambda parts: dumps(
        loads(parts.store.read_blob(parts.blobs["manifest"]), what="manifest") | changes
    )


@pytest.mark.case("E1", "A8")
@pytest.mark.parametrize(
    ("content", "code", "what"),
    [
        (changed_manifest(schema=2), "manifest-schema", "expected 1, got 2"),
        (changed_manifest(kind="spoon"), "manifest-format", "spoon"),
        (changed_manifest(unknown=1), "manifest-format", "unknown field 'unknown'"),
        (lambda parts: b'{"schema": 1, "schema": 1}', "manifest-format", "appears twice"),
        (lambda parts: b"{" * 200, "manifest-format", "not valid JSON"),
        (lambda parts: b'{"a": NaN}', "manifest-format", "NaN"),
        (
            lambda parts: changed_manifest()(parts).replace(b",", b", "),
            "manifest-canonical",
            "canonical encoding",
        ),
        (lambda parts: weights(3), "version-target", "points to"),
        (lambda parts: dumps({"accuracy": 0.5}), "version-target", "points to"),
        (lambda parts: b"[]\n", "version-target", "points to"),
    ],
)
def test_a_version_of_something_else_than_a_manifest(
    parts: Parts, content: Callable[[Parts], bytes], code: str, what: str
) -> None:
    put_manifest(parts.store, "bad", content(parts))
    fault = only(examine(parts.store))
    assert (fault.code, fault.affected) == (code, ("bad@1.0.0",)) and what in fault.what


def test_a_manifest_that_states_another_size(parts: Parts) -> None:
    value: Any = loads(parts.store.read_blob(parts.blobs["manifest"]), what="manifest")
    value["payload"]["file"]["bytes"] += 1
    put_manifest(parts.store, "bad", dumps(value))
    fault = only(examine(parts.store))
    assert (fault.code, fault.path, fault.affected) == ("blob-size", parts.path("weights"), ("bad@1.0.0",))


@pytest.mark.parametrize("changes", [{"count": 2}, {"tensors": "tensors:sha256:" + "0" * 64}])
def test_a_manifest_that_promises_other_tensors(parts: Parts, changes: dict[str, Any]) -> None:
    value: Any = loads(parts.store.read_blob(parts.blobs["manifest"]), what="manifest")
    value["payload"] |= changes
    put_manifest(parts.store, "bad", dumps(value))
    fault = only(examine(parts.store))
    assert (fault.code, fault.path, fault.affected) == (
        "payload-tensors",
        parts.path("weights"),
        ("bad@1.0.0",),
    )
    assert examine(parts.store, deep=False).sound == ("tensors" in changes)


@pytest.mark.case("E1", "A2")
def test_a_payload_whose_header_is_refused(parts: Parts) -> None:
    value: Any = loads(parts.store.read_blob(parts.blobs["manifest"]), what="manifest")
    data = b"no tensors at all"
    value["payload"]["file"] = {"blob": parts.store.put_blob(data).blob, "bytes": len(data)}
    put_manifest(parts.store, "bad", dumps(value))
    fault = only(examine(parts.store))
    assert (fault.code, fault.affected) == ("payload-header", ("bad@1.0.0",))


def test_memory_does_not_grow_with_the_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    from compatkit.registry.maintenance import contents

    monkeypatch.setattr(contents, "CHUNK_SIZE", 2**20)
    store = Store.init(tmp_path / "parts")
    store.publish("large", manifest_of(put(store, tensor_file(bytes(2**24)))))
    examine(store)  # what is imported on first use does not count
    tracemalloc.start()
    assert examine(store).bytes > 2**24
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


def test_progress_counts_the_bytes_of_all_blobs(whole: Parts) -> None:
    seen: list[tuple[int, int, str]] = []
    report = examine(whole.store, progress=lambda done, total, what: seen.append((done, total, what)))
    assert [item[0] for item in seen] == sorted(item[0] for item in seen)
    assert seen[-1][0] == seen[-1][1] == report.bytes and {item[1] for item in seen} == {report.bytes}


@pytest.mark.case("C2")
@pytest.mark.parametrize(
    "place", ["manifest", "weights", "run", "top", "tombstone", "alias", "log/1", "pointer"]
)
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_one_unreadable_file_is_a_fault_and_not_the_end(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, place: str, code: int
) -> None:
    path = str(parts.root / parts.path(place))
    real = os.open

    def fail(name: Any, *rest: Any, **more: Any) -> int:
        if str(name) == path:
            raise OSError(code, os.strerror(code), path)
        return real(name, *rest, **more)

    monkeypatch.setattr(os, "open", fail)
    fault = only(examine(parts.store))
    assert (fault.code, fault.path) == ("unreadable", parts.path(place)) and errno.errorcode[
        code
    ] in fault.what
    assert USERS[place.partition("/")[0]] in fault.affected


@pytest.mark.case("C2")
@pytest.mark.parametrize(
    "folder", ["blobs/sha256", f"refs/{HEAD}/@versions", f"refs/{HEAD}/@log/prod", "evidence", "trash"]
)
def test_one_unreadable_folder_is_one_fault(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    real = os.scandir

    def fail(name: Any) -> Any:
        if str(name) == str(parts.root / folder):
            raise PermissionError(errno.EACCES, "no", str(name))
        return real(name)

    monkeypatch.setattr(os, "scandir", fail)
    fault = only(examine(parts.store))
    assert (fault.code, fault.path) == ("unreadable", folder)


@pytest.mark.case("C2")
def test_a_read_only_registry_is_examined(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(operation: str, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(durable, "step", refuse)
    overwrite(parts.root / parts.path("run"), b"x")
    assert only(examine(parts.store)).code == "blob-digest"


@pytest.mark.case("C6", "D1")
def test_strays_and_leftovers_are_mentioned_and_do_no_harm(parts: Parts) -> None:
    for place in (
        ".DS_Store",
        "refs/.DS_Store",
        f"refs/{HEAD}/@versions/1.0.0~",
        "blobs/sha256/.#x",
        "evidence/x.swp",
    ):
        (parts.root / place).write_bytes(b"x")
    (parts.root / ".git").mkdir()
    for folder in ("tmp", "trash", "quarantine"):
        (parts.root / folder / "1-00").write_bytes(b"xyz")
    report = examine(parts.store)
    assert report.sound and {fault.severity for fault in report.faults} == {"info"}
    assert [fault.code for fault in report.faults].count("stray") == 6
    assert {fault.what for fault in report.faults if fault.code != "stray"} == {"1 file of 3 bytes"}


@pytest.mark.parametrize("elsewhere", ["00/{}", "{}"])
def test_a_blob_that_is_not_in_its_place_is_missing(parts: Parts, elsewhere: str) -> None:
    path = parts.root / parts.path("run")
    target = path.parents[1] / elsewhere.format(path.name)
    target.parent.mkdir(exist_ok=True)
    path.rename(target)
    assert {fault.code for fault in examine(parts.store).faults} == {"blob-missing", "misnamed"}


@pytest.mark.case("E4")
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"layout": 1}', bytes(100)])
def test_a_damaged_marker_is_a_fault(parts: Parts, content: bytes) -> None:
    overwrite(parts.root / "compatkit.json", content)
    fault = only(examine(open_damaged(parts.root)))
    assert (fault.code, fault.path) == ("marker-damaged", "compatkit.json")
    (parts.root / "compatkit.json").unlink()
    assert only(examine(open_damaged(parts.root))).code == "marker-missing"


@pytest.mark.case("E4")
def test_what_is_no_registry_or_a_newer_one_is_not_examined(parts: Parts, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="is not a registry"):
        open_damaged(tmp_path)
    value: Any = loads((parts.root / "compatkit.json").read_bytes(), what="marker")
    overwrite(parts.root / "compatkit.json", dumps(value | {"layout": 2, "min_reader": 2}))
    with pytest.raises(LayoutError, match="Upgrade"):
        open_damaged(parts.root)


def test_what_only_an_ancestor_lost_is_a_warning(parts: Parts) -> None:
    for place in ("new", "alias"):
        (parts.root / parts.path(place)).unlink()
    (parts.root / parts.path("parent weights")).unlink()
    faults = lasting_faults(examine(parts.store))
    assert {fault.code for fault in faults} == {"kin-missing"}
    assert f"an ancestor of {TOP}" in faults[0].affected


def test_a_withdrawn_parent_keeps_its_weights_for_its_children(parts: Parts) -> None:
    parts.store.withdraw(EXTRACTOR, "2.0.0", "a better one is there")
    (parts.root / parts.path("parent weights")).unlink()
    assert only(examine(parts.store)).code == "blob-missing"


def test_an_alias_of_a_withdrawn_version_is_a_warning(parts: Parts) -> None:
    parts.store.withdraw(HEAD, "1.0.0", "wrong")
    fault = only(examine(parts.store))
    assert (fault.code, fault.affected) == ("alias-withdrawn", (f"{HEAD}:prod",))


def test_a_publish_that_is_being_written_is_waited_for(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parts.root / parts.path("new")
    line = path.read_bytes()
    overwrite(path, line[:10])
    os.utime(path)
    monkeypatch.setattr(time, "sleep", lambda seconds: overwrite(path, line))
    assert examine(parts.store).faults == ()


def test_a_blob_that_vanishes_while_it_is_read_is_missing(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compatkit.registry.maintenance import blobs

    path, real = parts.root / parts.path("run"), blobs.read_content

    def vanish(place: Path, *rest: Any) -> Any:
        if place == path:
            path.unlink(missing_ok=True)
        return real(place, *rest)

    monkeypatch.setattr(blobs, "read_content", vanish)
    assert only(examine(parts.store)).code == "blob-missing"


def test_circles_of_parents_end(parts: Parts) -> None:
    """A circle cannot be made, for each would have to hold the other's sha256; a reader that believes is tried here."""
    from compatkit.registry.maintenance.blob_users import BlobUsers
    from compatkit.registry.maintenance.references import Published
    from compatkit.registry.names import Version

    first, two = ("sha256:" + digit * 64 for digit in "12")
    content = {
        first: dumps({"parents": [{"component": two}]}),
        two: dumps({"parents": [{"component": first}]}),
    }
    uses = BlobUsers(content.get)
    uses.follow_versions([Published("a", Version(1, 0, 0), first, "a@1.0.0")], ())
    assert uses.uses.keys() == content.keys()


def test_the_table_of_codes_is_complete_and_every_code_is_shown() -> None:
    shown = {damage.code for _, damage in rows()} | {
        "marker-missing",
        "marker-damaged",
        "unreadable",
        "blob-size",
    }
    shown |= {"manifest-format", "manifest-schema", "manifest-canonical", "payload-header", "payload-tensors"}
    shown |= {
        "version-target",
        "alias-withdrawn",
        "kin-missing",
        "stray",
    }
    shown |= {"drafts", "trash", "quarantine", "parent-missing", "result-format", "file-for-folder"}
    shown |= {"signature-orphan"}  # in test_signatures.py
    shown |= {"weights-remote"}  # in test_clone_without_weights.py
    shown |= {"version-step"}  # in test_numbers.py
    shown |= {"dropped-damaged", "dropped-unnamed"}  # in test_dropping.py
    shown |= {"settings-refused", "alias-unsigned", "publication-damaged"}  # in test_settings.py
    shown |= {"load-refused", "load-elsewhere"}  # in components/test_loadable.py
    assert shown == CODES.keys()


def test_a_result_that_is_no_object_and_a_parent_that_is_gone(parts: Parts) -> None:
    store = parts.store
    left, right = ("value:sha256:" + digit * 64 for digit in "ab")
    store.evidence.record(left, right, {}, b"[]\n")
    fault = only(examine(store))
    assert fault.code == "result-format" and fault.affected == (
        "results of value:aaaaaaaaaaaa with value:bbbbbbbbbbbb",
    )
    for place in ("parent", "new", "old", "tombstone"):
        (parts.root / parts.path(place)).unlink()
    result = {entry.code: entry for entry in examine(store).faults}
    assert result.keys() == {"result-format", "parent-missing"}
    assert set(result["parent-missing"].affected) == {TOP, f"{HEAD}@2.0.0"}


def test_a_document_that_is_too_large_is_none(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    from compatkit.registry.maintenance import blobs

    monkeypatch.setattr(blobs, "MAX_BYTES", 20)
    result = {fault.code: fault for fault in examine(parts.store).faults}
    assert result.keys() == {"version-target"} and "too many for a document" in result["version-target"].what
    monkeypatch.setattr(blobs, "MAX_BYTES", 10)
    assert {fault.code for fault in examine(parts.store).faults} == {"version-target", "result-format"}


def test_a_file_in_place_of_a_folder(parts: Parts) -> None:
    for place in ("locks", f"refs/{HEAD}/@log"):
        folder = parts.root / place
        folder.rename(parts.root.parent / folder.name)
        folder.write_bytes(b"x")
        fault = next(entry for entry in examine(parts.store).faults if entry.severity == "error")
        assert (fault.code, fault.path) == ("file-for-folder", place)
        folder.unlink()
        (parts.root.parent / folder.name).rename(folder)


CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
NAMES = ["1.0.0", "3", "prod", "0" * 64, "ab", "X", "@log", "a\udcff", ".x", "\u00e9"]


@attrs.frozen
class Strike:
    """Something that happens to one of the files and folders.

    Attributes:
        which: Number of the file, among all, wrapped around.
        how: What is done.
        data: Bytes that are put before what is left.
        cut: Number of bytes that are cut off at the front.
        name: What it is called from then on.
        where: Folder that it is moved to; ``""`` leaves it where it is.
    """

    which: int
    how: str
    data: bytes
    cut: int
    name: str
    where: str

    def do(self, root: Path) -> None:
        files = sorted(item for item in (root, *root.rglob("*")) if not item.is_symlink())
        path = files[self.which % len(files)]
        if self.how == "bytes" and path.is_file():
            overwrite(path, self.data + path.read_bytes()[self.cut :])
        elif self.how == "rename":
            target = (root / self.where if self.where else path.parent) / self.name
            if path not in (root, *target.parents) and target.parent.is_dir() and not target.exists():
                path.rename(target)
        elif path != root and self.how in ("remove", "link", "folder"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            if self.how == "link":
                path.symlink_to(root.parent)
            elif self.how == "folder":
                path.mkdir()


STRIKES = st.lists(
    st.builds(
        Strike,
        st.integers(0, 1000),
        st.sampled_from(["bytes", "remove", "rename", "link", "folder"]),
        st.binary(max_size=80),
        st.integers(0, 200),
        st.sampled_from(NAMES),
        st.sampled_from(["", "refs", "blobs/sha256"]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.case("A9", "C1", "E1")
@settings(max_examples=20, deadline=None, suppress_health_check=CHECKS)
@given(strikes=STRIKES)
def test_no_random_damage_is_more_than_faults(
    whole: Parts, tmp_path_factory: Any, strikes: list[Strike]
) -> None:
    random_damage(whole, tmp_path_factory, strikes)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=CHECKS)
@given(strikes=STRIKES)
def test_no_random_damage_of_many_is_more_than_faults(
    whole: Parts, tmp_path_factory: Any, strikes: list[Strike]
) -> None:
    random_damage(whole, tmp_path_factory, strikes)


def random_damage(whole: Parts, tmp_path_factory: Any, strikes: list[Strike]) -> None:
    parts = whole.copy(tmp_path_factory.mktemp("random") / "parts")
    for strike in strikes:
        strike.do(parts.root)
    before = tree(parts.root)
    try:
        report = examine(open_damaged(parts.root))
    except LayoutError:
        return  # the marker is gone, and so is blobs or refs: nothing tells that it was a registry
    assert tree(parts.root) == before
    assert all(fault.code in CODES and fault.what for fault in report.faults)
    assert report.to_json() and examine(open_damaged(parts.root), deep=False) is not None
    assert tree(parts.root) == before
