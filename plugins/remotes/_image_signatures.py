"""Signatures of images in container registries: manifests whose subject is the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compatkit.errors import IntegrityError
from compatkit.registry.remotes.packages import PackageFile, digest_of, dumps, loads

from ._component_images import MEDIA_TYPES, SIGNS, Descriptor, read_signature, signature_image
from ._distribution import Distribution

MOST_SIGNATURES = 1000
"""Maximum number of signatures of one image."""


def read_signatures(
    registry: Distribution, repository: str, image: str, what: str
) -> Mapping[PackageFile, bytes]:
    """Return the signatures that refer to an image, with their contents.

    Args:
        registry: The registry.
        repository: Name of the repository.
        image: Digest of the image.
        what: The image, for messages.

    Raises:
        FormatError: A manifest is malformed.
        IntegrityError: There are too many, or one is missing or does not match its digest.
    """
    wanted: list[str] = []
    for number, entry in enumerate(registry.referrers(repository, image)):
        if isinstance(entry, dict) and entry.get("artifactType") == MEDIA_TYPES["signature"]:
            wanted.append(Descriptor.read(entry, f"{what}: referrers[{number}]").digest)
    if len(wanted) > MOST_SIGNATURES:
        raise IntegrityError(
            f"{what}: expected at most {MOST_SIGNATURES} signatures, got {len(wanted)}.", subject=what
        )
    signatures: dict[PackageFile, bytes] = {}
    for digest in dict.fromkeys(wanted):
        manifest = registry.manifest(repository, digest)
        if manifest is None:
            raise IntegrityError(f"{what} lacks the manifest {digest} of a signature.", subject=digest)
        signature = read_signature(loads(manifest[0], what=f"{what}: {digest}"), f"{what}: {digest}")
        if signature is not None:
            signatures[signature] = _content(registry, repository, signature, what)
    return signatures


def _content(registry: Distribution, repository: str, signature: PackageFile, what: str) -> bytes:
    """Return a signature.

    Raises:
        IntegrityError: It is missing, or does not match its digest.
    """
    data = registry.read_blob(repository, signature.digest, 0, signature.size, signature.size)
    if data is None or digest_of(data) != signature.digest:
        actual = "nothing" if data is None else digest_of(data)
        raise IntegrityError(
            f"{what}: expected the signature {signature.digest}, got {actual}.", subject=signature.digest
        )
    return data


def missing_signatures(
    registry: Distribution, repository: str, subject: Descriptor, signatures: Sequence[PackageFile]
) -> Mapping[bytes, PackageFile]:
    """Return the signatures that do not refer to an image yet, by their manifests.

    Args:
        registry: The registry.
        repository: Name of the repository.
        subject: The image.
        signatures: Signatures of the image.
    """
    if not signatures:
        return {}
    entries = registry.referrers(repository, subject.digest)
    present = {entry.get("digest") for entry in entries if isinstance(entry, dict)}
    manifests = {dumps(signature_image(signature, subject)): signature for signature in signatures}
    return {data: signature for data, signature in manifests.items() if digest_of(data) not in present}


def write_signature(
    registry: Distribution, repository: str, subject: Descriptor, manifest: bytes, signature: PackageFile
) -> None:
    """Write the manifest of a signature, whose blob is there.

    Args:
        registry: The registry.
        repository: Name of the repository.
        subject: The image.
        manifest: Manifest of the signature.
        signature: The signature.
    """
    annotations = {SIGNS: signature.signs}
    registry.add_referrer(repository, subject.digest, manifest, MEDIA_TYPES["signature"], annotations)
