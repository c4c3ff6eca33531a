"""Uploads to S3 in parts, in bounded memory; a later push continues one that was interrupted.

Parts have sizes that follow from the size of the file, so what an earlier process has sent is found again. A part is
kept if S3's ETag of it is the MD5 of the local bytes; it is sent again otherwise, also where a store encrypts with keys
of its own and has other ETags.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from compatkit.registry.remotes.failures import chain, http_status

PART = 2**23
"""Bytes of a part, unless the file has too many."""
MAX_PARTS = 10_000
"""Maximum number of parts that S3 accepts."""
PARTS_AT_ONCE = 4
"""Number of parts in memory, of all uploads to a store together."""
ATTEMPTS = 3
"""Number of uploads of one file, where other processes complete or abort them."""

Parts = dict[int, tuple[int, str]]
"""Size and ETag of each part that a store has, by number."""


@attrs.define(eq=False)
class PartedUpload:
    """Upload of one file.

    Attributes:
        call: Calls an operation of S3 on the object, by its name and further arguments.
        key: Key of the object.
        file: Local file, which does not change.
        progress: Called with the number of bytes of each part.
        slots: Limit of the parts in memory.
    """

    call: Callable[..., Any]
    key: str
    file: Path
    progress: Callable[[int], None]
    slots: threading.Semaphore
    _size: int = attrs.field(init=False)
    _part: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._size = self.file.stat().st_size
        pieces = -(-self._size // (PART * MAX_PARTS))
        self._part = PART * max(pieces, 1)

    def run(self) -> None:
        """Send what the store lacks of the file, and complete the object.

        Raises:
            OSError: The store refuses it, or cannot be reached; what it has stays there.
        """
        for attempt in range(ATTEMPTS):
            begun = self._begun()
            upload = max(begun, key=lambda name: len(begun[name]), default=None)
            if upload is None:
                upload = self.call("create_multipart_upload")["UploadId"]
            try:
                self._send(upload, begun.pop(upload, {}))
            except Exception as error:
                if not _is_lost(error) or attempt == ATTEMPTS - 1:
                    raise
                if self._is_complete():  # another process has sent it
                    return
            else:
                for other in begun:
                    self._abort(other)
                return

    def _send(self, upload: str, parts: Parts) -> None:
        numbers = range(1, self._count + 1)
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            try:
                tags = list(pool.map(lambda number: self._send_part(upload, number, parts), numbers))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        sent = [{"PartNumber": number, "ETag": tag} for number, tag in zip(numbers, tags, strict=True)]
        self.call("complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": sent})

    def _send_part(self, upload: str, number: int, parts: Parts) -> str:
        """Send a part unless the store has it; return its ETag."""
        with self.slots:
            data = self._read(number)
            tag = parts.get(number, (0, ""))[1]
            if tag.strip('"') != hashlib.md5(data, usedforsecurity=False).hexdigest():
                tag = self.call("upload_part", UploadId=upload, PartNumber=number, Body=data)["ETag"]
        self.progress(len(data))
        return tag

    def _read(self, number: int) -> bytes:
        with self.file.open("rb") as source:
            source.seek((number - 1) * self._part)
            data = source.read(self._length(number))
        if len(data) != self._length(number):
            raise OSError(f"{self.file} became shorter while it was read")
        return data

    @property
    def _count(self) -> int:
        return max(-(-self._size // self._part), 1)

    def _length(self, number: int) -> int:
        return min(self._part, self._size - (number - 1) * self._part)

    def _begun(self) -> dict[str, Parts]:
        """Return the parts of uploads that were begun; those with other parts than this file has are aborted."""
        begun: dict[str, Parts] = {}
        try:
            answer = self.call("list_multipart_uploads", Prefix=self.key)
            uploads = [item["UploadId"] for item in answer.get("Uploads", []) if item["Key"] == self.key]
            for upload in uploads:
                with suppress(FileNotFoundError):
                    begun[upload] = dict(self._parts(upload))
        except Exception as error:
            if http_status(error) is None:
                raise
            return {}  # not permitted, or not known to the store
        for upload, parts in list(begun.items()):
            if any(
                number > self._count or size != self._length(number) for number, (size, _) in parts.items()
            ):
                self._abort(upload)
                del begun[upload]
        return begun

    def _parts(self, upload: str) -> Iterator[tuple[int, tuple[int, str]]]:
        marker = 0
        while True:
            answer = self.call("list_parts", UploadId=upload, PartNumberMarker=marker)
            parts = answer.get("Parts", [])
            for part in parts:
                yield part["PartNumber"], (part["Size"], part["ETag"])
            if not answer.get("IsTruncated") or not parts:
                return
            marker = parts[-1]["PartNumber"]

    def _abort(self, upload: str) -> None:
        try:
            self.call("abort_multipart_upload", UploadId=upload)
        except Exception:  # it only takes space, until the bucket's rule removes it
            return

    def _is_complete(self) -> bool:
        with suppress(FileNotFoundError):
            return bool(self.call("head_object")["ContentLength"] == self._size)
        return False


def _is_lost(error: BaseException) -> bool:
    """Return whether the store no longer knows an upload."""
    return any("NoSuchUpload" in f"{type(cause).__name__} {cause}" for cause in chain(error))
