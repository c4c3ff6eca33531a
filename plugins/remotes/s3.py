"""Remotes on Amazon S3 and compatible stores.

s3fs brings credentials, options and connections. Objects are listed and looked at by requests of our own: its file
system looks for a folder wherever an object is missing. So are uploads: its parts are large, many are in memory at
once, and an interrupted upload cannot go on.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from compatkit import hookimpl
from compatkit.hooks import Register

from ._filesystem import FileSystemStore, open_system, unless_bucket_missing
from ._parts import PARTS_AT_ONCE, PartedUpload

compatkit_api = 1


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``s3`` and ``s3a``."""
    register("s3", open_remote)
    register("s3a", open_remote)


def open_remote(address: str, **options: Any) -> S3Store:
    """Return the files at an address.

    Args:
        address: ``s3://BUCKET/PREFIX``.
        **options: Options of s3fs, such as ``endpoint_url``; it also reads AWS's environment variables and files.

    Raises:
        MissingDependency: s3fs is not installed.
    """
    return S3Store(*open_system(address, options))


@attrs.frozen(eq=False)
class S3Store(FileSystemStore):
    """The files below one prefix of a bucket."""

    _parts: threading.Semaphore = attrs.field(init=False, factory=lambda: threading.Semaphore(PARTS_AT_ONCE))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in a folder, at any depth, by path."""
        return {path: int(item["Size"]) for path, item in self._objects(folder)}

    def fingerprints(self, folder: str) -> dict[str, str]:
        """Return the ETag of all files in a folder: their MD5, unless the store encrypts with keys of its own."""
        return {path: str(item.get("ETag")).strip('"') for path, item in self._objects(folder)}

    def fingerprint(self, data: bytes) -> str:
        """Return the ETag of a file with some content."""
        return hashlib.md5(data, usedforsecurity=False).hexdigest()

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        try:
            return int(self._call(self._key(path), "head_object")["ContentLength"])
        except FileNotFoundError as error:
            return unless_bucket_missing(error, None)

    def upload(self, path: str, file: Path, progress: Callable[[int], None]) -> None:
        """Upload a local file in parts, and go on where an earlier upload was interrupted."""
        key = self._key(path)
        PartedUpload(partial(self._call, key), key, file, progress, self._parts).run()

    def _objects(self, folder: str) -> Iterator[tuple[str, Any]]:
        """Yield the objects below a folder, 1,000 for each request."""
        prefix, further = f"{self._key(folder)}/", dict[str, str]()
        while True:
            try:
                answer = self._call(None, "list_objects_v2", Prefix=prefix, **self._s3.req_kw, **further)
            except FileNotFoundError as error:
                return unless_bucket_missing(error, None)
            for item in answer.get("Contents", []):
                if not item["Key"].endswith("/"):  # what some programs create for a folder
                    yield f"{folder}/{item['Key'].removeprefix(prefix)}", item
            if not answer.get("IsTruncated"):
                return None
            further = {"ContinuationToken": answer["NextContinuationToken"]}

    @property
    def _s3(self) -> Any:
        """The file system of s3fs, which has no types."""
        return self.system

    def _key(self, path: str) -> str:
        return str(self._s3.split_path(self.path(path))[1])

    def _call(self, key: str | None, operation: str, **arguments: Any) -> Any:
        """Call an operation of S3 on the bucket, or on one object."""
        bucket = self._s3.split_path(self.root)[0]
        if key is not None and operation != "list_multipart_uploads":
            arguments["Key"] = key
        return self._s3.call_s3(operation, Bucket=bucket, **arguments)
