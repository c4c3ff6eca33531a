"""Three levels of a check: images (data), what both were trained against (protocol), what was measured (empirical)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from compatkit.contracts.cells import Cell, Grade
from compatkit.contracts.contract import Anchor, Data, Protocol
from compatkit.contracts.labels import Labels, names, shared_classes
from compatkit.contracts.manifest import trained_with
from compatkit.contracts.verdict import EQUAL_SHAPES, Codes, Finding, Promise, Report, Severity
from compatkit.errors import DataError

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Manifest

RELEASED = "released"
"""What a target head is called that new parts were trained against, in the place of an auxiliary head's task."""
IMAGES = ("size", "channels", "mean", "std")
"""What is compared of the images of two components."""

images_of = attrgetter(*IMAGES)
"""Return these values of a ``Data``."""

_INPUT: Codes = (("input-differs", "informs"),)
_BATCH: Codes = (("normalisation-needed", "informs"),)
ONE_NETWORK: Codes = (("one-network", "promises"),)
"""Code and severity of what ``own_findings`` yields."""


class Anchored(NamedTuple):
    """All that a promise depends on of one component.

    Attributes:
        batch: Whether it holds batch normalisation.
        anchors: Kind and digest of what it was trained against, in order.
        known: The same.
    """

    batch: bool
    anchors: tuple[tuple[str, str], ...]
    known: frozenset[tuple[str, str]]


def anchored(protocol: Protocol) -> Anchored:
    """Return all that a promise depends on of one component."""
    anchors = tuple((one.kind, one.digest) for one in protocol.anchors)
    return Anchored(protocol.normalisation == "batch", anchors, frozenset(anchors))


def protocol_of(head: Manifest) -> Protocol:
    """Return how a head was trained, the head itself among what a partner may have been trained against."""
    known = head.contract.protocol
    if head.kind != "head":
        return known
    own = Anchor("auxiliary_head", head.payload.tensors, RELEASED, head.contract.data.labels)
    return Protocol(known.normalisation, (*known.anchors, own))


def input_findings(given: Data, trained: Data) -> Iterator[Finding]:
    """Yield how the extractor's images differ from those that the head was trained on."""
    differing = [name for name in IMAGES if getattr(given, name) != getattr(trained, name)]
    if differing:
        yield Finding(
            "input-differs",
            "data",
            "informs",
            "; ".join(f"{name} {_value(getattr(trained, name))}" for name in differing),
            "; ".join(f"{name} {_value(getattr(given, name))}" for name in differing),
            "images that the head was trained on, images of the extractor",
            "none needed: the extractor's own preprocessing is used",
        )


def input_codes(given: object, trained: object) -> Codes:
    """Return code and severity of what ``input_findings`` yields, from ``images_of`` both sides."""
    return _INPUT if given != trained else ()


def protocol_findings(left: Protocol, right: Protocol) -> Iterator[Finding]:
    """Yield whose statistics batch normalisation needs, and every anchor that both were trained against."""
    sides = [name for name, one in (("extractor", left), ("head", right)) if one.normalisation == "batch"]
    if sides:
        yield Finding(
            "normalisation-needed",
            "protocol",
            "informs",
            "statistics of the images that the pair runs on",
            "statistics of the images that each part was trained on",
            f"batch normalisation in the {' and the '.join(sides)}",
            "normalisation batch (batches of the extractor's images), or reestimate (unlabelled images of the "
            "extractor's own data)",
        )
    known = {(one.kind, one.digest): one for one in left.anchors}
    for one in right.anchors:
        if (one.kind, one.digest) in known:
            yield _anchor(known[one.kind, one.digest], one)


def protocol_codes(left: Anchored, right: Anchored) -> Codes:
    """Return code and severity of what ``protocol_findings`` yields, each once."""
    codes = _BATCH if left.batch or right.batch else ()
    if left.known.isdisjoint(right.known):
        return codes
    shared = [_anchor_code(one) for one, digest in right.anchors if (one, digest) in left.known]
    return *codes, *dict.fromkeys(shared)


def _anchor_code(kind: str) -> tuple[str, Severity]:
    return ("initial-weights-shared", "informs") if kind == "initial_weights" else ("head-shared", "promises")


def promise_of(codes: Iterable[str]) -> Promise:
    """Return the best that protocol findings with such codes promise."""
    found = set(codes)
    if "one-network" in found:
        return "one-network"
    if "head-shared" in found:
        return "shared-head"
    return "shared-init" if "initial-weights-shared" in found else "none"


def own_findings(head: Manifest, extractor: str, *, own: bool) -> Iterator[Finding]:
    """Yield that a head was cut or trained with an extractor.

    Args:
        head: Names that extractor by the digest of its manifest, which names its weights and its cut: other weights,
            or another cut, are another digest.
        extractor: Manifest digest.
        own: Whether the named one computes the same as this one, as another release of it does.
    """
    for named in trained_with(head):
        if own or named == extractor:
            yield Finding(
                "one-network",
                "protocol",
                "promises",
                f"the extractor that the head was cut or trained with ({_short(named)})",
                "this extractor" if named == extractor else "another release of it, which computes the same",
                "head and extractor",
            )


def newest(cells: Sequence[Cell]) -> Grade:
    """Return the grade of the newest measurement that is not stale; of the newest, if all are."""
    grades: list[Grade] = [cell.grade for cell in cells if cell.restricted is not None]
    fresh: list[Grade] = [grade for grade in grades if grade != "stale"]
    found = fresh or grades
    return found[-1] if found else "none"


def empirical_findings(answers: Report, cells: Sequence[Cell]) -> Iterator[Finding]:
    """Yield the figures of a pair, and that it is unproven where only its shapes speak for it.

    Args:
        answers: Wiring, promise and evidence; its findings are not looked at.
        cells: Measured cells of this pair, oldest first.
    """
    for cell in cells:
        if cell.restricted is not None:
            yield _measured(cell)
    if answers.unproven:
        came = "only shared initial weights" if answers.promise == "shared-init" else "neither"
        if answers.evidence == "stale":
            came = "only figures from before the metric changed"
        yield Finding(
            "unproven",
            "empirical",
            "warns",
            "a measured accuracy, a shared auxiliary head, or the two parts of one network",
            f"{came}; {EQUAL_SHAPES.rstrip('.').lower()}",
            "this extractor with this head",
            "compatkit matrix EXTRACTOR HEAD",
        )


def _rows(left: Labels, right: Labels) -> str:
    """Say how many common classes stand at one row of two class layers that started equal; nothing of others."""
    try:
        pairs = shared_classes(left, right)
    except DataError:  # classes of one name: `check(data=...)` tells
        return ""
    same = sum(mine == theirs for mine, theirs in pairs)
    return f"; class layers too: {same} of {len(pairs)} common classes stand at one row" if pairs else ""


def _anchor(left: Anchor, shared: Anchor) -> Finding:
    if shared.kind == "initial_weights":
        return Finding(
            "initial-weights-shared",
            "protocol",
            "informs",
            f"initial weights {_short(shared.digest)}",
            f"the same{_rows(left.classes or (), shared.classes or ())}",
            "head and extractor",
            "alone never a promise: training moves the networks apart again; class layers that started equal help "
            "where the same class stands at the same row; measure the pair",
        )
    classes = f" ({names(shared.classes)})" if shared.classes else ""
    return Finding(
        "head-shared",
        "protocol",
        "promises",
        f"trained against the auxiliary head {shared.task or 'without a name'} {_short(shared.digest)}",
        f"the same{classes}",
        "head and extractor",
    )


def _measured(cell: Cell) -> Finding:
    came = "no figure"
    if (figure := cell.restricted) is not None:
        came = f"{figure.accuracy:.3f} [{figure.low:.3f}, {figure.high:.3f}] on {figure.count} images"
    if cell.recovered is not None:
        came += f", recovered {cell.recovered:.3f}"
    bound = f"bound {cell.bound.accuracy:.3f}" if cell.bound is not None else "no bound measured"
    chance = f"chance {cell.chance:.3f}" if cell.chance is not None else "chance not known"
    policy = cell.settings.get("policy", "unknown")
    return Finding(
        "evidence",
        "empirical",
        "warns" if cell.grade in ("chance", "stale") else "informs",
        f"{chance}, {bound}",
        f"{came}: {cell.grade}",
        f"this extractor with this head, normalisation {policy}, data {cell.settings.get('data', 'unknown')}",
        "measure again: the metric has changed since" if cell.grade == "stale" else "",
    )


def _short(digest: str) -> str:
    return digest[: digest.rfind(":") + 13]


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in value)
    return str(value)
