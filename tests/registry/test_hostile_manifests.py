"""Manifests, references and notes as strangers write them: in a registry, under their right digests."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hostile import NAME, build, kinds, manifest_of, put_in_place, weights
from watching import listing

from compatkit.contracts import manifest as manifests
from compatkit.contracts.manifest import Parent, edges, from_bytes, to_bytes
from compatkit.errors import CompatkitError, FormatError, IntegrityError, NotFound
from compatkit.foundation import codec
from compatkit.foundation.codec import MAX_BYTES, digest, loads
from compatkit.registry.store import Store

MIB = 2**20


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("template") / "parts").root


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Store:
    return Store.open(shutil.copytree(template, tmp_path / "parts"))


@pytest.fixture
def valid(store: Store) -> bytes:
    return to_bytes(store.manifest(NAME))


def version_of(store: Store, name: str, data: bytes) -> str:
    """Let a version point at bytes of any kind, under their right digest."""
    path = store.root / "refs" / name / "@versions" / "1.0.0"
    path.parent.mkdir(parents=True, exist_ok=True)
    put_in_place(path, f"{store.put_blob(data).blob}\n".encode())
    return f"{name}@1.0.0"


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[: len(data) // 2], "not valid JSON"),
    "without its last brace": (lambda data: data[:-2], "not valid JSON"),
    "empty": (lambda data: b"", "got an empty file"),
    "no JSON": (lambda data: b"weights are in the other file", "not valid JSON"),
    "two documents": (lambda data: data + data, "not valid JSON"),
    "a field twice": (
        lambda data: data.replace(b'"kind":', b'"kind":"head","kind":'),
        "'kind' appears twice",
    ),
    "NaN": (lambda data: data.replace(b'"std":[0.25]', b'"std":[NaN]'), "NaN is not a finite float"),
    "infinity": (lambda data: data.replace(b'"std":[0.25]', b'"std":[1e999]'), "1e999 is not a finite float"),
    "minus zero": (lambda data: data.replace(b'"seed":1', b'"seed":-0'), "-0 is a whole number"),
    "a newer schema": (
        lambda data: data.replace(b'"schema":1', b'"schema":2'),
        "written by a newer compatkit",
    ),
    "an older schema": (lambda data: data.replace(b'"schema":1', b'"schema":0'), "expected 1, got 0"),
    "an unknown field": (
        lambda data: data.replace(b'"kind":', b'"color":1,"kind":'),
        "unknown field 'color'",
    ),
    "an unknown field deep inside": (
        lambda data: data.replace(b'"dtype":', b'"depth":1,"dtype":'),
        r"inputs\[0\]: unknown field 'depth'",
    ),
    "10,000 deep": (
        lambda data: data.replace(
            b'"extensions":{}', b'"extensions":{"x":' + b"[" * 10**4 + b"]" * 10**4 + b"}"
        ),
        "nested deeper than 100",
    ),
    "a million values": (
        lambda data: data.replace(b'"extensions":{}', b'"extensions":{"x":[' + b"0," * 10**6 + b"0]}"),
        "at most 1000000 commas",
    ),
    "not UTF-8": (lambda data: data.replace(b"better", b"\xffetter"), "expected UTF-8"),
    "a lone surrogate": (lambda data: data.replace(b"better", b"\\ud800"), "surrogate"),
    "UTF-16": (lambda data: data.decode().encode("utf-16"), "expected UTF-8"),
    "a byte order mark": (lambda data: b"\xef\xbb\xbf" + data, "not valid JSON"),
    "a pickle": (lambda data: b"\x80\x04\x95" + data, "expected UTF-8"),
    "weights": (lambda data: weights(3), "UTF-8|not valid JSON"),
    "a list": (lambda data: b"[" + data + b"]", "expected object, got"),
}


@pytest.mark.case("E1")
@pytest.mark.parametrize(("change", "complaint"), BROKEN.values(), ids=BROKEN)
def test_a_broken_manifest_is_one_error_that_names_its_component_and_spoils_no_other(
    store: Store, valid: bytes, change: Callable[[bytes], bytes], complaint: str
):
    reference = version_of(store, "team/broken", change(valid))
    before = listing(store.root)
    with pytest.raises(FormatError, match=complaint) as caught:
        store.manifest(reference)
    message = str(caught.value)
    assert message.startswith("manifest") and reference in message and len(message) < 500
    assert caught.value.exit_code == 3
    assert store.manifest(NAME) == from_bytes(valid) and store.names() == ["team/broken", NAME]
    assert listing(store.root) == before


@pytest.mark.case("E1")
def test_a_manifest_of_a_terabyte_is_refused_by_its_size(store: Store):
    path = store.objects.path(str(store.resolve(NAME).digest))
    path.chmod(0o600)
    os.truncate(path, 10**12)  # a hole, which takes no room on the disk
    start = time.monotonic()
    with pytest.raises(IntegrityError, match=rf"has {10**12} bytes.*at most {MAX_BYTES}"):
        store.manifest(NAME)
    assert time.monotonic() - start < 5


@pytest.mark.slow
@pytest.mark.case("E1")
def test_a_manifest_of_a_hundred_megabytes_is_refused(store: Store, valid: bytes):
    padded = valid.replace(b"better", b"b" * (100 * MIB))
    with pytest.raises(IntegrityError, match=f"at most {MAX_BYTES}"):
        store.manifest(version_of(store, "team/large", padded))
    with pytest.raises(FormatError, match=f"at most {MAX_BYTES} bytes of JSON"):
        from_bytes(padded)


@pytest.mark.case("E1")
def test_a_place_is_put_into_words_for_a_message_only(valid: bytes, monkeypatch: pytest.MonkeyPatch):
    """Deep below long keys, the words for all places would take gigabytes."""
    below = b'{"' + b"k" * 512 + b'":'
    many = below * 90 + b"[" + b"[]," * 20_000 + b"[]]" + b"}" * 90
    data = valid.replace(b'"extensions":{}', b'"extensions":' + many)
    manifest = from_bytes(data)
    with pytest.raises(FormatError) as caught:
        from_bytes(data.replace(b"[[]", b'[{"component":"sha256:"}'))
    assert ".kkk" in str(caught.value) and len(str(caught.value)) < 9000
    for module in (codec, manifests):
        monkeypatch.setattr(module, "path_text", lambda place: pytest.fail("put into words"))
    assert from_bytes(data) == manifest and to_bytes(manifest) == to_bytes(from_bytes(data))
    assert list(edges(manifest)) == list(edges(from_bytes(valid)))


@pytest.mark.case("E1")
@pytest.mark.parametrize("digits", [400, 4000])
def test_whole_numbers_of_any_length_are_no_overflow(valid: bytes, digits: int):
    number = b"1" + b"0" * digits
    for place in (b'"mean":[0.5]', b'"std":[0.25]', b'"count":3', b'"size":[8,8]', b'"sketch":[0.5]'):
        key = place.partition(b":")[0]
        changed = valid.replace(place, key + b":" + (b"[" + number + b"]" if b"[" in place else number))
        with pytest.raises(FormatError):
            from_bytes(changed)
    assert from_bytes(valid.replace(b'"seed":1', b'"seed":' + number)).training["seed"] == 10**digits


@pytest.mark.case("E1")
def test_a_missing_blob_and_a_blob_of_another_size_are_told(store: Store, valid: bytes):
    weights_path = kinds(store)["weights"]
    stated = json.loads(valid)
    stated["payload"]["file"]["bytes"] += 1
    with pytest.raises(IntegrityError, match="the blob has"):
        store.publish("team/two", from_bytes(json.dumps(stated).encode()))
    weights_path.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        store.load_state(store.manifest(NAME))
    with pytest.raises(IntegrityError, match="which is not in this registry"):
        store.publish("team/two", from_bytes(valid))


@pytest.mark.case("E2")
@pytest.mark.parametrize(
    ("field", "value"),
    [("tensors", "tensors:sha256:" + "0" * 64), ("count", 4), ("count", 10**15)],
)
def test_a_payload_that_lies_is_refused_at_publish(store: Store, field: str, value: Any):
    honest = store.manifest(NAME)
    lie = attrs.evolve(honest, payload=attrs.evolve(honest.payload, **{field: value}))
    with pytest.raises(IntegrityError, match="the manifest states"):
        store.publish("team/two", lie)


@pytest.mark.case("E2")
def test_a_tensor_digest_that_lies_is_found_when_all_is_verified(store: Store, valid: bytes):
    true = loads(valid, what="m")["payload"]["tensors"].encode()
    reference = version_of(store, "team/two", valid.replace(true, b"tensors:sha256:" + b"0" * 64))
    with pytest.raises(IntegrityError, match="expected tensors tensors:sha256:0000"):
        store.load_state(store.manifest(reference), verify="always")


@pytest.mark.case("E1", "F")
@pytest.mark.parametrize(
    "parent",
    [
        *(
            b'{"parents":3}',
            b'{"parents":[3]}',
            b'{"parents":[{}]}',
            b'{"parents":[{"component":"../x"}]}',
            b"[]",
        ),
        *(b'{"parents":null}', b"3", b'{"parents":[{"component":3}]}', b"no JSON", b'{"blob":"sha256:../x"}'),
    ],
    ids=ascii,
)
def test_a_parent_that_is_no_manifest_is_no_crash(store: Store, parent: bytes):
    data = weights(9)
    child = manifest_of(store.put_blob(data), data, parents=(Parent("adapts", store.put_blob(parent).blob),))
    try:
        store.publish("team/child", child)
    except CompatkitError as error:
        assert error.exit_code == 3 and store.names() == [NAME]


@pytest.mark.case("F")
def test_parents_in_a_circle_end(store: Store, valid: bytes):
    """No two manifests can name each other by digest; one that is damaged can name itself."""
    path = kinds(store)["manifest"]
    circle = loads(valid, what="m") | {
        "parents": [{"relation": "adapts", "component": f"sha256:{path.name}"}]
    }
    put_in_place(path, json.dumps(circle).encode())
    data = weights(9)
    child = manifest_of(store.put_blob(data), data, parents=(Parent("adapts", f"sha256:{path.name}"),))
    with pytest.raises(IntegrityError, match="does not match its digest"):
        store.publish("team/child", child)


POINTERS = [
    "prod 1",
    "best",
    "team/one:prod",
    "2.0.0 two",
    "2.0.0 -3",
    "2.0.0 \u0663",
    "2.0.0 " + "9" * 40,
    "",
    "\0",
]


@pytest.mark.case("B6")
@pytest.mark.parametrize("pointer", POINTERS, ids=ascii)
def test_an_alias_points_at_a_version_and_at_nothing_else(store: Store, pointer: str):
    put_in_place(kinds(store)["alias"], pointer.encode())
    assert store.aliases(NAME) == {"prod": "2.0.0"}, "its log tells"
    shutil.rmtree(kinds(store)["move"].parent)
    for read in (lambda: store.resolve(f"{NAME}:prod"), lambda: store.aliases(NAME)):
        start = time.monotonic()
        with pytest.raises(FormatError, match="expected a version and the number of its move"):
            read()
        assert time.monotonic() - start < 5


@pytest.mark.case("B6")
def test_a_pointer_far_beyond_its_log_is_answered_at_once(store: Store):
    put_in_place(kinds(store)["alias"], b"2.0.0 999999999\n")
    start = time.monotonic()
    assert [move.number for move in store.alias_log(NAME, "prod")] == [1, 2]
    assert time.monotonic() - start < 5


@pytest.mark.case("B6")
@pytest.mark.parametrize(
    "note",
    [
        {"to": "prod"},
        {"to": "best:prod"},
        {"to": "../../x"},
        {"to": ["2.0.0"]},
        {"from": 3},
        {"time": None},
        {"to": "02.0.0"},
        {"to": {"version": "2.0.0"}},
    ],
    ids=str,
)
def test_a_move_leads_from_version_to_version(store: Store, note: dict[str, Any]):
    whole = {"from": "1.0.0", "to": "2.0.0", "time": "2026-01-01T00:00:00+00:00", **note}
    path = kinds(store)["move"]
    put_in_place(path, json.dumps(whole).encode())
    for read in (lambda: store.alias_log(NAME, "prod"), lambda: _without_pointer(store)):
        with pytest.raises(FormatError, match="expected an object with from") as caught:
            read()
        assert str(path) in str(caught.value)


def _without_pointer(store: Store) -> object:
    kinds(store)["alias"].unlink()
    return store.resolve(f"{NAME}:prod")


@pytest.mark.case("B6", "C6")
def test_what_is_no_number_in_a_log_is_no_move(store: Store):
    log = kinds(store)["move"].parent
    for name in ("0", "03", "-1", "\u0663", "\u00b2", "9" * 200, "2.tmp", ".DS_Store"):
        (log / name).write_bytes(b"{")
    kinds(store)["alias"].unlink()
    assert [move.number for move in store.alias_log(NAME, "prod")] == [1, 2]
    assert store.aliases(NAME) == {"prod": "2.0.0"}


@pytest.mark.case("B6")
def test_an_alias_of_a_version_that_is_gone_is_told(store: Store):
    kinds(store)["version"].unlink()
    with pytest.raises(NotFound, match=r"no version 2\.0\.0"):
        store.resolve(f"{NAME}:prod")
    store.set_alias(NAME, "old", None)
    store.withdraw(NAME, "1.0.0", "again")
    with pytest.raises(NotFound, match="withdrawn"):
        Store.open(store.root).resolve(NAME)


@pytest.mark.case("B6", "C6")
def test_other_spellings_of_a_version_are_no_versions(store: Store):
    folder = kinds(store)["version"].parent
    for name in (
        "1.0",
        "1",
        "01.0.0",
        "1.0.0+x",
        "v1.0.0",
        "1.0.0 ",
        "1.0.0.",
        "\u0661.0.0",
        "3.0.0~",
        "latest",
    ):
        (folder / name).write_bytes((folder / "2.0.0").read_bytes())
    again = Store.open(store.root)
    assert list(map(str, again.versions(NAME))) == ["2.0.0"]
    assert str(again.resolve(NAME)) == f"{NAME}@2.0.0"


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    "note", ["", "{", "[]", "3", '{"reason":3}', '{"reason":"a","reason":"b"}', '{"time":"x"}']
)
def test_a_tombstone_that_is_damaged_never_brings_its_version_back(store: Store, note: str):
    put_in_place(kinds(store)["tombstone"], note.encode())
    with pytest.raises(FormatError):
        store.tombstone(NAME, "1.0.0")
    with pytest.raises((FormatError, NotFound)):
        store.resolve(f"{NAME}@1.0.0")
    assert str(store.resolve(NAME)) == f"{NAME}@2.0.0" and list(map(str, store.versions(NAME))) == ["2.0.0"]


@pytest.mark.case("B2", "E1")
@pytest.mark.parametrize(
    "line",
    [
        "sha256:../../../outside/secret\n",
        "sha256:" + "A" * 64 + "\n",
        "md5:" + "0" * 32 + "\n",
        "sha1:" + "0" * 40 + "\n",
        "sha256:" + "0" * 63 + "\n",
        "sha256:" + "0" * 65 + "\n",
        " sha256:" + "0" * 64 + "\n",
        "sha256:" + "0" * 64 + "\r\n",
        "sha256:" + "0" * 64 + "\nsha256:" + "1" * 64 + "\n",
        "/etc/passwd\n",
    ],
    ids=ascii,
)
def test_a_version_that_holds_no_digest_is_damaged_and_leads_nowhere(store: Store, line: str):
    put_in_place(kinds(store)["version"], line.encode())
    with pytest.raises(IntegrityError, match="should hold one line"):
        store.resolve(f"{NAME}@2.0.0")
    with pytest.raises(IntegrityError):
        store.resolve(NAME)


@pytest.mark.case("E1")
def test_a_version_of_a_manifest_that_is_gone_says_so(store: Store):
    put_in_place(kinds(store)["version"], b"sha256:" + b"0" * 64 + b"\n")
    with pytest.raises(IntegrityError, match=rf"is missing.*{NAME}"):
        store.manifest(NAME)


@pytest.mark.case("E1")
def test_the_same_manifest_in_other_words_is_another_component(store: Store, valid: bytes):
    spaced = json.dumps(json.loads(valid), indent=1).encode()
    reference = version_of(store, "team/spaced", spaced)
    assert store.manifest(reference) == store.manifest(NAME)
    assert store.resolve(reference).digest == digest(spaced) != store.resolve(NAME).digest
