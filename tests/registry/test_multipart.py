"""Uploads to S3 in parts: bounded in memory, and continued by the next push."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compatkit_plugins.remotes import _parts
from compatkit_plugins.remotes._parts import PartedUpload

PART = 1000


class NoSuchUpload(OSError):
    """What a store answers about an upload that is completed, aborted or was never begun."""


class Refused(OSError):
    """An answer with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


@attrs.define
class Bucket:
    """Uploads and the one object of a bucket, kept as slowly and plainly as can be.

    Attributes:
        uploads: Parts of each upload, by number.
        whole: Content of the object.
        calls: Number of calls of each operation.
        fail_at: Number of the part from which sending fails.
        most: Most parts that were being sent at a time.
    """

    uploads: dict[str, dict[int, bytes]] = attrs.field(factory=dict)
    whole: bytes | None = None
    calls: Counter[str] = attrs.field(factory=Counter)
    fail_at: int | None = None
    most: int = 0
    _sending: int = 0
    _lock: Any = attrs.field(factory=threading.Lock)

    def __call__(self, operation: str, **arguments: Any) -> Any:
        self.calls[operation] += 1
        return getattr(self, operation)(**arguments)

    def create_multipart_upload(self) -> Any:
        name = f"upload{len(self.uploads) + self.calls['abort_multipart_upload']}"
        self.uploads[name] = {}
        return {"UploadId": name}

    def list_multipart_uploads(self, Prefix: str) -> Any:
        keys = [(Prefix, name) for name in self.uploads]
        return {
            "Uploads": [{"Key": key, "UploadId": name} for key, name in [*keys, (f"{Prefix}x", "foreign")]]
        }

    def list_parts(self, UploadId: str, PartNumberMarker: int) -> Any:
        parts = [(n, data) for n, data in sorted(self._of(UploadId).items()) if n > PartNumberMarker]
        page = [{"PartNumber": n, "Size": len(data), "ETag": self.tag(data)} for n, data in parts[:2]]
        return {"Parts": page, "IsTruncated": len(parts) > 2}

    def upload_part(self, UploadId: str, PartNumber: int, Body: bytes) -> Any:
        if self.fail_at is not None and PartNumber >= self.fail_at:
            raise ConnectionResetError
        with self._lock:
            self._sending += 1
            self.most = max(self.most, self._sending)
        self._of(UploadId)[PartNumber] = Body
        with self._lock:
            self._sending -= 1
        return {"ETag": self.tag(Body)}

    def complete_multipart_upload(self, UploadId: str, MultipartUpload: Any) -> None:
        parts = self._of(UploadId)
        sent = [(part["PartNumber"], part["ETag"]) for part in MultipartUpload["Parts"]]
        assert sent == [(number, self.tag(data)) for number, data in sorted(parts.items())]
        self.whole = b"".join(data for _, data in sorted(parts.items()))
        del self.uploads[UploadId]

    def abort_multipart_upload(self, UploadId: str) -> None:
        self.uploads.pop(UploadId, None)

    def head_object(self) -> Any:
        if self.whole is None:
            raise FileNotFoundError
        return {"ContentLength": len(self.whole)}

    def _of(self, name: str) -> dict[int, bytes]:
        if name not in self.uploads:
            raise NoSuchUpload("NoSuchUpload")
        return self.uploads[name]

    @staticmethod
    def tag(data: bytes) -> str:
        import hashlib

        return f'"{hashlib.md5(data).hexdigest()}"'


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def send(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Send a file; return the sizes that were reported."""
    monkeypatch.setattr(_parts, "PART", PART)

    def send_file(data: bytes, at_once: int = 2) -> list[int]:
        (tmp_path / "blob").write_bytes(data)
        reported: list[int] = []
        slots = threading.Semaphore(at_once)
        PartedUpload(bucket, "key", tmp_path / "blob", reported.append, slots).run()
        return reported

    return send_file


DATA = bytes(range(256)) * 40  # 11 parts, the last one shorter


def test_a_file_arrives_whole_with_few_parts_at_a_time(bucket: Bucket, send: Callable[..., list[int]]):
    assert sum(send(DATA)) == len(DATA)
    assert bucket.whole == DATA and bucket.calls["upload_part"] == 11 and bucket.most <= 2
    assert not bucket.uploads


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1])
def test_files_of_any_size_arrive_whole(bucket: Bucket, send: Callable[..., list[int]], size: int):
    send(DATA[:size])
    assert bucket.whole == DATA[:size]


def test_an_interrupted_upload_goes_on_with_the_parts_that_are_missing(
    bucket: Bucket, send: Callable[..., list[int]]
):
    bucket.fail_at = 6
    with pytest.raises(ConnectionResetError):
        send(DATA, at_once=1)
    sent = bucket.calls["upload_part"]
    there = len(next(iter(bucket.uploads.values())))
    assert bucket.whole is None and 0 < there < sent
    bucket.fail_at = None
    assert sum(send(DATA)) == len(DATA)
    assert bucket.whole == DATA and not bucket.uploads
    assert bucket.calls["create_multipart_upload"] == 1
    assert bucket.calls["upload_part"] == sent + 11 - there


def test_a_part_with_other_bytes_is_sent_again(bucket: Bucket, send: Callable[..., list[int]]):
    bucket.uploads["theirs"] = {1: DATA[:PART], 2: b"?" * PART}
    send(DATA)
    assert bucket.whole == DATA and bucket.calls["upload_part"] == 10


@pytest.mark.parametrize("parts", [{1: b"?"}, {12: b"?" * PART}, {11: b"?" * PART}, {10**4: b""}])
def test_an_upload_in_parts_of_another_size_is_aborted(
    bucket: Bucket, send: Callable[..., list[int]], parts: dict[int, bytes]
):
    bucket.uploads["theirs"] = dict(parts)
    send(DATA)
    assert bucket.whole == DATA and not bucket.uploads and bucket.calls["upload_part"] == 11


def test_of_several_uploads_the_longest_goes_on_and_the_others_are_aborted(
    bucket: Bucket, send: Callable[..., list[int]]
):
    bucket.uploads |= {"a": {1: DATA[:PART]}, "b": {1: DATA[:PART], 2: DATA[PART : 2 * PART]}, "c": {}}
    send(DATA)
    assert bucket.whole == DATA and not bucket.uploads and bucket.calls["upload_part"] == 9


def test_an_upload_that_another_process_completes_is_done(
    bucket: Bucket, send: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
):
    original = Bucket.upload_part

    def complete_first(self: Bucket, UploadId: str, PartNumber: int, Body: bytes) -> Any:
        if PartNumber == 5:
            self.whole = DATA
            self.uploads.clear()
        return original(self, UploadId, PartNumber, Body)

    monkeypatch.setattr(Bucket, "upload_part", complete_first)
    send(DATA)
    assert bucket.whole == DATA and not bucket.uploads


def test_an_upload_that_another_process_aborts_is_begun_again(
    bucket: Bucket, send: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
):
    original = Bucket.upload_part

    def abort_once(self: Bucket, UploadId: str, PartNumber: int, Body: bytes) -> Any:
        if self.calls["abort_multipart_upload"] == 0 and PartNumber == 5:
            self("abort_multipart_upload", UploadId=UploadId)
        return original(self, UploadId, PartNumber, Body)

    monkeypatch.setattr(Bucket, "upload_part", abort_once)
    send(DATA)
    assert bucket.whole == DATA and bucket.calls["create_multipart_upload"] == 2


def test_an_upload_that_is_always_aborted_fails(
    bucket: Bucket, send: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Bucket, "complete_multipart_upload", lambda *_, **__: bucket._of("none"))
    with pytest.raises(NoSuchUpload):
        send(DATA)
    assert bucket.whole is None


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_store_that_lists_no_uploads_gets_a_new_one(
    bucket: Bucket, send: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, status: int
):
    def refuse(self: Bucket, Prefix: str) -> Any:
        raise Refused(status)

    monkeypatch.setattr(Bucket, "list_multipart_uploads", refuse)
    send(DATA)
    assert bucket.whole == DATA


def test_a_store_with_other_tags_gets_every_part_again(
    bucket: Bucket, send: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Bucket, "tag", staticmethod(lambda data: f'"encrypted-{len(data)}"'))
    bucket.uploads["mine"] = {1: DATA[:PART]}
    send(DATA)
    assert bucket.whole == DATA and bucket.calls["upload_part"] == 11


def test_a_file_of_terabytes_has_at_most_ten_thousand_parts(tmp_path: Path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    upload = PartedUpload(Bucket(), "key", tmp_path / "sparse", lambda _: None, threading.Semaphore(1))
    assert 5 * 2**20 <= upload._part <= 2**28 and -(-(2**40) // upload._part) <= 10_000
