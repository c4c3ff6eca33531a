"""What a recombination is made of must be there; what a part once came from need not."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from handmade import HEX, child_of, part

from compatkit.contracts.manifest import Edge, Manifest, Parent, Payload, to_bytes
from compatkit.foundation.codec import digest
from compatkit.registry.maintenance.blob_users import BlobUsers
from compatkit.registry.maintenance.blobs import missing_code
from compatkit.registry.maintenance.references import Published
from compatkit.registry.names import Version


def weights(number: int) -> Any:
    return Payload(Edge(f"sha256:{HEX[number]}", 16), f"tensors:sha256:{HEX[number]}", 1, 16)


def published(name: str, manifest: Manifest) -> Published:
    return Published(name, Version(1, 0, 0), digest(to_bytes(manifest)), f"{name}@1.0.0")


ORIGIN, MINE = part(payload=weights(2)), part(payload=weights(3))
FIRST = part("head", payload=weights(4), parents=child_of(digest(to_bytes(MINE))))
HEAD = part("head", payload=weights(5), parents=child_of(digest(to_bytes(ORIGIN))))
PAIR = attrs.evolve(
    part(payload=weights(6)),
    kind="recombination",
    blueprint=attrs.evolve(part().blueprint, side="recombination"),
    parents=tuple(
        Parent(relation, digest(to_bytes(value))) for relation, value in (("extractor", MINE), ("head", HEAD))
    ),
)
DOCUMENTS = {digest(to_bytes(item)): to_bytes(item) for item in (ORIGIN, MINE, FIRST, HEAD, PAIR)}


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=["as kin first", "as a part first"])
def test_weights_of_its_parts_are_needed_in_whatever_order_they_are_reached(names: tuple[str, str]) -> None:
    """The extractor of the pair is also what the other head once came from."""
    uses = BlobUsers(DOCUMENTS.get)
    versions = sorted([published(names[0], FIRST), published(names[1], PAIR)], key=str)
    uses.follow_versions(versions, ())
    codes = {number: missing_code(uses.uses[f"sha256:{HEX[number]}"]) for number in range(2, 7)}
    assert codes == {
        2: "kin-missing",
        3: "blob-missing",
        4: "blob-missing",
        5: "blob-missing",
        6: "blob-missing",
    }
    assert uses.manifests == 5


def test_without_the_recombination_they_are_kin() -> None:
    uses = BlobUsers(DOCUMENTS.get)
    uses.follow_versions([published("a", FIRST)], ())
    assert missing_code(uses.uses[f"sha256:{HEX[3]}"]) == "kin-missing"
