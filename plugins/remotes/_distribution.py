"""Requests of the OCI Distribution Specification 1.1: repositories, tags, manifests, blobs and referrers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

import attrs

from compatkit.errors import FormatError, IntegrityError, LayoutError
from compatkit.registry.remotes.packages import digest_of, dumps, is_digest, loads

from ._component_images import IMAGE_TYPE, INDEX_TYPE, LONGEST_IMAGE, Descriptor
from ._registry_session import Answer, RegistrySession

PAGE = 1000
"""Number of names requested at once."""
MAX_PAGES = 2000
"""Maximum number of pages of a list."""
LONGEST_PAGE = 2**23
LONGEST_LIST = 2**26
"""Bytes of all pages of a list."""
INDEX_TRIES = 8
"""Attempts to add a signature to an index that other programs change at the same time."""
MANIFEST_TYPES = ", ".join(
    [
        IMAGE_TYPE,
        INDEX_TYPE,
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    ]
)
_NEXT = re.compile(r'<([^<>]*)>\s*;(?:[^,]*;)?\s*rel="?next"?')
_MISSING = frozenset({400, 404, 405, 501})
"""Answers of registries to requests that they do not know."""


@attrs.define(eq=False)
class Distribution:
    """A container registry.

    Attributes:
        session: Requests to it.
        rights: What tokens are requested for: ``"pull"``, or ``"pull,push"``.
    """

    session: RegistrySession
    rights: Literal["pull", "pull,push"] = "pull"
    _has_referrers: bool = attrs.field(init=False, default=True)

    def scope(self, repository: str) -> str:
        """Return the right to a repository, as tokens name it."""
        return f"repository:{repository}:{self.rights}"

    def check(self) -> None:
        """Check that the registry speaks the protocol.

        Raises:
            LayoutError: It does not.
        """
        answer = self.session.request("GET", self.session.url("/v2/"))
        if answer.status in (401, 403) or answer.status >= 500:
            raise answer.error(self.session.host)
        if answer.status != 200:
            raise LayoutError(
                f"{self.session.host} is no container registry: expected 200 for /v2/, got {answer.status}. Check the "
                "address.",
                subject=self.session.host,
            )

    def repositories(self) -> list[str] | None:
        """Return the names of all repositories; None if the registry does not list them."""
        return self._pages(
            self.session.url("/v2/_catalog", {"n": str(PAGE)}), "repositories", "registry:catalog:*"
        )

    def tags(self, repository: str) -> list[str] | None:
        """Return the tags of a repository; None if there is no such repository."""
        url = self.session.url(f"/v2/{repository}/tags/list", {"n": str(PAGE)})
        return self._pages(url, "tags", self.scope(repository))

    def manifest(self, repository: str, reference: str) -> tuple[bytes, str] | None:
        """Return a manifest and its media type, or None.

        Args:
            repository: Name of the repository.
            reference: Tag or digest.

        Raises:
            IntegrityError: It is longer than registries accept, or its bytes do not match the digest.
        """
        answer = self.session.request(
            "GET",
            self.session.url(f"/v2/{repository}/manifests/{reference}"),
            scopes=(self.scope(repository),),
            headers={"Accept": MANIFEST_TYPES},
            limit=LONGEST_IMAGE,
        )
        if answer.status == 404:
            return None
        what = f"{repository}:{reference}"
        if answer.status != 200:
            raise answer.error(what)
        stated = reference if is_digest(reference) else answer.headers.get("Docker-Content-Digest", "")
        if is_digest(stated) and digest_of(answer.body) != stated:
            raise IntegrityError(
                f"{self.session.host}/{what}: expected the manifest {stated}, got {digest_of(answer.body)}.",
                subject=stated,
            )
        return answer.body, _media_type(answer)

    def put_manifest(
        self, repository: str, reference: str, data: bytes, media_type: str = IMAGE_TYPE
    ) -> Answer:
        """Write a manifest; return the answer, whatever it is.

        Args:
            repository: Name of the repository.
            reference: Tag or digest.
            data: The manifest.
            media_type: Its media type.
        """
        return self.session.request(
            "PUT",
            self.session.url(f"/v2/{repository}/manifests/{reference}"),
            scopes=(self.scope(repository),),
            headers={"Content-Type": media_type},
            body=data,
            statuses=frozenset({201}),
        )

    def has_blob(self, repository: str, digest: str, size: int) -> bool:
        """Return whether a repository has a blob of this size."""
        url = self.session.url(f"/v2/{repository}/blobs/{digest}")
        answer = self.session.request("HEAD", url, scopes=(self.scope(repository),))
        if answer.status not in (200, 404):
            raise answer.error(f"{repository}: {digest}")
        return answer.status == 200 and answer.headers.get("Content-Length", str(size)) == str(size)

    def read_blob(self, repository: str, digest: str, start: int, count: int, size: int) -> bytes | None:
        """Return a range of a blob, or None if it is missing or the registry sends whole blobs only.

        Args:
            repository: Name of the repository.
            digest: Digest of the blob.
            start: First byte.
            count: Maximum number of bytes.
            size: Size of the blob.

        Raises:
            RangeIgnored: The registry sends whole blobs only.
        """
        whole = start == 0 and count >= size
        answer = self.session.request(
            "GET",
            self.session.url(f"/v2/{repository}/blobs/{digest}"),
            scopes=(self.scope(repository),),
            headers={} if whole else {"Range": f"bytes={start}-{min(start + count, size) - 1}"},
            limit=size if whole else count,
            statuses=frozenset({200 if whole else 206}),
        )
        if answer.status == 404:
            return None
        if answer.status == 200 and not whole:
            raise RangeIgnored
        if answer.status not in (200, 206):
            raise answer.error(f"{repository}: {digest}")
        return answer.body

    def download_blob(self, repository: str, digest: str, size: int, file: BinaryIO) -> bool:
        """Write a blob into a file; return False if it is missing."""
        answer = self.session.request(
            "GET",
            self.session.url(f"/v2/{repository}/blobs/{digest}"),
            scopes=(self.scope(repository),),
            limit=size,
            sink=file,
        )
        if answer.status not in (200, 404):
            raise answer.error(f"{repository}: {digest}")
        return answer.status == 200

    # --- manifests that refer to others

    def referrers(self, repository: str, digest: str) -> list[Any]:
        """Return the descriptors of manifests whose subject is a manifest; they are not verified.

        Where the registry lacks the Referrers API, the index under the tag of the subject's digest has them.

        Args:
            repository: Name of the repository.
            digest: Digest of the subject.
        """
        if self._has_referrers:
            url = self.session.url(f"/v2/{repository}/referrers/{digest}")
            referrers = self._pages(url, "manifests", self.scope(repository), media_type=INDEX_TYPE)
            if referrers is not None:
                return referrers
            self._has_referrers = False
        return self._fallback(repository, digest)

    def add_referrer(
        self, repository: str, subject: str, data: bytes, artifact_type: str, annotations: dict[str, str]
    ) -> None:
        """Write a manifest that refers to another, and an index of them where the registry makes none.

        Args:
            repository: Name of the repository.
            subject: Digest of the other manifest.
            data: The manifest.
            artifact_type: Its ``artifactType``.
            annotations: Its annotations.

        Raises:
            OSError: The registry refused it, or other programs changed the index in each attempt.
        """
        digest = digest_of(data)
        answer = self.put_manifest(repository, digest, data)
        if answer.status != 201:
            raise answer.error(f"{repository}: {digest}")
        if answer.headers.get("OCI-Subject") is not None:
            return
        own = {
            **Descriptor(IMAGE_TYPE, digest, len(data), annotations).to_json(),
            "artifactType": artifact_type,
        }
        tag = _fallback_tag(subject)
        for _ in range(INDEX_TRIES):
            entries = self._fallback(repository, subject)
            if any(isinstance(entry, dict) and entry.get("digest") == digest for entry in entries):
                return
            index = dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*entries, own]})
            answer = self.put_manifest(repository, tag, index, INDEX_TYPE)
            if answer.status != 201 and answer.status < 500:  # else another client may write it, too
                raise answer.error(f"{repository}:{tag}")
        raise ConnectionError(f"{repository}:{tag}: other programs changed it in {INDEX_TRIES} attempts")

    def _fallback(self, repository: str, digest: str) -> list[Any]:
        answer = self.manifest(repository, _fallback_tag(digest))
        if answer is None:
            return []
        what = f"{self.session.host}/{repository}:{_fallback_tag(digest)}"
        index = loads(answer[0], what=what)
        entries = index.get("manifests") if isinstance(index, dict) else None
        if not isinstance(entries, list):
            raise FormatError(f"{what}: expected an index with a list of manifests.", subject=what)
        return entries

    def _pages(self, url: str, key: str, scope: str, media_type: str | None = None) -> list[Any] | None:
        """Return all entries of a list in pages; None if the registry does not have the list.

        Args:
            url: Address of the first page.
            key: Key of the entries.
            scope: Right for tokens.
            media_type: Expected media type; another one means that the registry does not know the request.

        Raises:
            IntegrityError: The pages do not end.
            FormatError: A page is malformed.
        """
        entries: list[Any] = []
        size = 0
        for page in range(MAX_PAGES):
            answer = self.session.request("GET", url, scopes=(scope,), limit=LONGEST_PAGE)
            if page == 0 and (
                answer.status in _MISSING or (media_type and _media_type(answer) != media_type)
            ):
                if answer.status in _MISSING or answer.status == 200:
                    return None
            if answer.status != 200:
                raise answer.error(f"{key} of {scope.split(':')[1]}")
            value = loads(answer.body, what=f"{self.session.host}: {key}", max_bytes=LONGEST_PAGE)
            page = value.get(key) if isinstance(value, dict) else 0
            if page is not None and not isinstance(
                page, list
            ):  # some registries write null for an empty list
                raise FormatError(f"{self.session.host}: expected a list of {key}, got {value!r:.100}.")
            entries += page or []
            following = next(_links(answer), None)
            if following is None:
                return entries
            size += len(answer.body)
            if not page or size > LONGEST_LIST:
                break
            url = self.session.resolve(answer.url, following)
        raise IntegrityError(
            f"{self.session.host}: expected the list of {key} to end within {MAX_PAGES} pages and "
            f"{LONGEST_LIST} bytes, and none to be empty.",
            subject=self.session.host,
        )


class RangeIgnored(Exception):
    """The registry sends whole blobs where a range is requested."""


def _links(answer: Answer) -> Iterator[str]:
    """Yield the addresses of the next page."""
    for header in answer.headers.getlist("Link"):
        yield from _NEXT.findall(header)


def _media_type(answer: Answer) -> str:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _fallback_tag(digest: str) -> str:
    """Return the tag of the index of all manifests that refer to one, after the Distribution Specification."""
    return digest.replace(":", "-")
