"""How many bytes: by name what would go with it and what others keep too, by folder, and nothing counted twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from handmade import HEX, Hand, child_of, part, tagged

from compatkit.errors import IntegrityError
from compatkit.registry.blobs import Objects
from compatkit.registry.refs import References
from compatkit.registry.usage import Amount, usage


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    return Hand.init(tmp_path / "parts")


def weighing(hand: Hand, weights: bytes, **changes: Any) -> str:
    """Put a manifest with these weights; return its digest."""
    payload = part().payload
    file = attrs.evolve(payload.file, blob=hand.put(weights), bytes=len(weights))
    return hand.put(part(payload=attrs.evolve(payload, file=file), **changes))


def of(hand: Hand, pattern: str | None = None) -> Any:
    return usage(References(hand.root), Objects(hand.root), pattern)


def test_an_empty_registry_takes_nothing(hand: Hand) -> None:
    result = of(hand)
    assert (
        result.names == ()
        and result.blobs == Amount(0, 0) == result.unreferenced == result.evidence == result.trash
    )
    assert result.to_json()["quarantine"] == {"files": 0, "bytes": 0}


def test_bytes_by_name_and_by_folder(hand: Hand) -> None:
    extractor = weighing(hand, b"e" * 1000)
    head = weighing(hand, b"h" * 300, parents=child_of(extractor))
    twin = weighing(hand, b"h" * 300, about=tagged(of="twin"))
    size = {digest: hand.blob(digest).stat().st_size for digest in (extractor, head, twin)}
    hand.publish("a/extractor", "1.0.0", extractor)
    hand.publish("a/head", "1.0.0", head)
    hand.publish("b/twin", "1.0.0", twin)
    hand.publish("b/twin", "1.1.0", twin)
    hand.withdraw("b/twin", "1.0.0")
    unused = hand.put(b"u" * 77)
    result = hand.put(b'{"accuracy":0.5}\n')
    pointer = hand.root / "evidence" / HEX[1] / HEX[2] / HEX[3] / result.removeprefix("sha256:")
    pointer.parent.mkdir(parents=True)
    pointer.write_text(f"{result}\n")
    (pointer.parent / "notes.txt").write_text("stray")
    (hand.root / "trash" / f"{HEX[4]}-1-00").write_bytes(b"t" * 5)
    (hand.root / "quarantine" / f"{HEX[5]}-1-00").write_bytes(b"q" * 6)
    (hand.root / "tmp" / "1-00").write_bytes(b"d" * 7)
    (hand.root / "tmp" / "folder").mkdir()

    outcome = of(hand)
    by_name = {name.name: (name.own, name.shared) for name in outcome.names}
    assert by_name == {
        "a/extractor": (Amount(), Amount(2, 1000 + size[extractor])),  # the head was trained with it
        "a/head": (Amount(1, size[head]), Amount(3, 1000 + size[extractor] + 300)),
        "b/twin": (Amount(1, size[twin]), Amount(1, 300)),
    }
    assert outcome.blobs == Amount(7, 1000 + 300 + 77 + 17 + sum(size.values()))
    assert outcome.unreferenced == Amount(1, hand.blob(unused).stat().st_size)
    assert outcome.evidence == Amount(2, 17 + 72)
    assert (outcome.trash, outcome.quarantine, outcome.drafts) == (Amount(1, 5), Amount(1, 6), Amount(1, 7))
    assert [name.name for name in of(hand, "*/t*").names] == ["b/twin"]
    assert of(hand, "*/t*").names[0] == outcome.names[2] and of(hand, "none*").names == ()


def test_what_is_damaged_or_missing_leads_nowhere_and_fails_nothing(hand: Hand) -> None:
    digest = weighing(hand, b"w" * 10)
    hand.publish("a", "1.0.0", digest)
    hand.publish("a", "1.1.0", b"x" * 72)
    hand.publish("b", "1.0.0", f"sha256:{HEX[6]}")
    (blob,) = [
        path for path in (hand.root / "blobs").rglob("*") if path.is_file() and path.read_bytes() == b"w" * 10
    ]
    blob.unlink()
    result = of(hand)
    assert [(name.name, name.own.files) for name in result.names] == [("a", 1), ("b", 0)]


@pytest.mark.case("C1")
def test_links_are_not_followed(hand: Hand, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"x" * 100)
    (hand.root / "trash" / "link").symlink_to(tmp_path / "outside" / "file")
    assert of(hand).trash == Amount()
    (hand.root / "trash" / "link").unlink()
    (hand.root / "trash").rmdir()
    (hand.root / "trash").symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError, match="symbolic link"):
        of(hand)
