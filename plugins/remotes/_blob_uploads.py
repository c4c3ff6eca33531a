"""Uploads of blobs to a container registry: large ones in chunks, which go on after an interruption."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import attrs
from filelock import FileLock, Timeout

from compatkit.registry.remotes.packages import cache_folder

from ._distribution import Distribution
from ._registry_session import PIECE, Answer, Body

CHUNK = 2**25
"""Bytes of one request; larger blobs are uploaded in chunks."""
STARTS = 2
"""Number of times that an upload begins, if the registry loses it."""
FAILURES = 5
"""Number of times that an upload goes on after a failure without an accepted chunk in between."""
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")
_BINARY = {"Content-Type": "application/octet-stream"}


class SessionLost(Exception):
    """The registry no longer knows an upload, or what it has is not what was sent."""


@attrs.define(eq=False)
class Upload:
    """An upload that the registry has opened.

    Attributes:
        location: Address of the next request.
        offset: Number of bytes that the registry has.
        chunk: Bytes of one request.
    """

    location: str = attrs.field(repr=False)
    chunk: int
    offset: int = 0


@attrs.frozen(eq=False)
class BlobUploads:
    """Uploads to one registry.

    Attributes:
        registry: The registry.
        chunk: Bytes of one request.
    """

    registry: Distribution
    chunk: int = attrs.field(factory=lambda: CHUNK)

    def put(self, repository: str, digest: str, data: memoryview, source: str | None) -> bool:
        """Upload a blob; return False if it was mounted from another repository instead.

        Args:
            repository: Name of the repository.
            digest: Digest of the blob.
            data: Content.
            source: Other repository that has the blob, if known.

        Raises:
            OSError: The registry cannot be reached, or refuses the blob.
        """
        with self._remembered(repository, digest, len(data)) as record:
            upload = None if record is None else self._resume(repository, record)
            for _ in range(STARTS):
                upload = upload or self._begin(repository, digest, source)
                if upload is None:
                    return False
                with suppress(SessionLost):
                    self._send(repository, digest, data, upload, record)
                    return True
                upload = None
        raise ConnectionError(f"{repository}: the registry lost the upload of {digest} {STARTS} times")

    def _begin(self, repository: str, digest: str, source: str | None) -> Upload | None:
        """Open an upload; None if the blob was mounted."""
        query = {"mount": digest, "from": source} if source else {}
        url = self.registry.session.url(f"/v2/{repository}/blobs/uploads/", query)
        other = (self.registry.scope(source),) if source else ()
        answer = self._request("POST", url, repository, headers={"Content-Length": "0"}, others=other)
        if answer.status == 201:
            return None
        if answer.status != 202:
            raise answer.error(f"{repository}: upload of {digest}")
        smallest = answer.headers.get("OCI-Chunk-Min-Length", "")
        chunk = max(self.chunk, int(smallest)) if re.fullmatch("[0-9]{1,12}", smallest) else self.chunk
        return Upload(self._location(answer, url), chunk)

    def _send(
        self, repository: str, digest: str, data: memoryview, upload: Upload, record: Path | None
    ) -> None:
        """Send what the registry lacks of a blob, and complete it.

        Raises:
            SessionLost: The registry no longer knows the upload, or refuses the whole as another content.
            OSError: The registry cannot be reached, or refuses the blob.
        """
        if len(data) <= self.chunk:
            self._complete(repository, digest, data, upload)
            return
        failures = 0
        while upload.offset < len(data):
            if record is not None:
                _remember(record, upload.location)
            end = min(upload.offset + upload.chunk, len(data))
            start, failures = upload.offset, failures + 1
            try:
                answer = self._request(
                    "PATCH",
                    upload.location,
                    repository,
                    headers={
                        **_BINARY,
                        "Content-Range": f"{start}-{end - 1}",
                        "Content-Length": str(end - start),
                    },
                    body=lambda start=start, end=end: _pieces(data, start, end),
                )
            except OSError as error:
                if isinstance(error, PermissionError) or failures == FAILURES:
                    raise
                time.sleep(2**failures / 4)
                self._update(repository, upload)
                continue
            if answer.status == 202:
                reached = _reached(answer)
                upload.location = self._location(answer, upload.location)
                upload.offset = end if reached is None else reached
                if not start <= upload.offset <= end or (upload.offset == start and failures == FAILURES):
                    raise SessionLost
                failures = failures if upload.offset == start else 0
            elif answer.status == 416 or answer.status >= 500 or answer.status == 429:
                if failures == FAILURES:
                    raise answer.error(f"{repository}: upload of {digest}")
                time.sleep(2**failures / 4)
                self._update(repository, upload)
            elif answer.status in (401, 403):
                raise answer.error(f"{repository}: upload of {digest}")
            elif start:
                raise SessionLost
            else:  # a registry without chunks
                whole = self._begin(repository, digest, None)
                if whole is not None:
                    self._complete(repository, digest, data, whole)
                return
        self._complete(repository, digest, data[len(data) :], upload)

    def _complete(self, repository: str, digest: str, data: memoryview, upload: Upload) -> None:
        """Send the last bytes of a blob, and its digest, which the registry compares."""
        url = f"{upload.location}{'&' if '?' in upload.location else '?'}{urlencode({'digest': digest})}"
        answer = self._request(
            "PUT",
            url,
            repository,
            headers={**_BINARY, "Content-Length": str(len(data))},
            body=lambda: _pieces(data, 0, len(data)),
        )
        if answer.status in (400, 404, 416) and upload.offset:
            raise SessionLost
        if answer.status not in (201, 204):
            raise answer.error(f"{repository}: upload of {digest}")

    def _resume(self, repository: str, record: Path) -> Upload | None:
        """Return the upload that an earlier process began; None if there is none, or the registry has dropped it."""
        try:
            location = record.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
        upload = Upload(location, self.chunk)
        try:
            self.registry.session.resolve(self.registry.session.url("/"), location)
            self._update(repository, upload)
        except Exception:  # whatever stands in the file: begin again
            return None
        return upload

    def _update(self, repository: str, upload: Upload) -> None:
        """Ask how much of an upload the registry has.

        Raises:
            SessionLost: The registry no longer knows the upload.
        """
        answer = self._request("GET", upload.location, repository)
        reached = _reached(answer)
        if answer.status not in (200, 202, 204) or reached is None:
            raise SessionLost
        upload.location, upload.offset = self._location(answer, upload.location), reached

    def _location(self, answer: Answer, base: str) -> str:
        location = answer.headers.get("Location")
        return self.registry.session.resolve(base, location) if location else base

    def _request(
        self,
        method: str,
        url: str,
        repository: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        others: tuple[str, ...] = (),
    ) -> Answer:
        scopes = (self.registry.scope(repository), *others)
        return self.registry.session.request(method, url, scopes=scopes, headers=headers, body=body)

    @contextmanager
    def _remembered(self, repository: str, digest: str, size: int) -> Iterator[Path | None]:
        """Yield the file that remembers the upload of a large blob; None if there is none, or it is in use."""
        if size <= self.chunk:
            yield None
            return
        what = f"{self.registry.session.host}/{repository}@{digest}"
        record = cache_folder() / "uploads" / hashlib.sha256(what.encode()).hexdigest()
        lock = FileLock(f"{record}.lock")
        try:
            record.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except (OSError, Timeout):
            yield None
            return
        try:
            yield record
            record.unlink(missing_ok=True)
        finally:
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()


def _remember(record: Path, location: str) -> None:
    """Write the address of an upload, for this user alone: whoever has it can write into the upload."""
    draft = f"{record}.new"
    with suppress(OSError), open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(location)
    with suppress(OSError):
        os.replace(draft, record)


def _reached(answer: Answer) -> int | None:
    """Return how many bytes an upload has, by its answer; registries write ``0-0`` for none."""
    match = _RANGE.fullmatch(answer.headers.get("Range", "").strip())
    return None if match is None else int(match[1]) + 1 if int(match[1]) else 0


def _pieces(data: memoryview, start: int, end: int) -> Iterator[bytes]:
    """Yield a range of a buffer; pages of a mapped file are given back once they are sent."""
    for position in range(start, end, PIECE):
        yield bytes(data[position : min(position + PIECE, end)])
        if isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            page = position - position % mmap.PAGESIZE
            data.obj.madvise(mmap.MADV_DONTNEED, page, min(PIECE, len(data.obj) - page))
