"""What a measured pair looks like: plain values, readable without torch."""

from __future__ import annotations

from typing import Literal

import attrs

METRIC = "recombination_accuracy"
METRIC_VERSION = "1"
"""Raised whenever the same parts, images and settings would give another figure."""
ADAPTED = "adapters"
"""The setting that names what stood between the two; such a figure is no evidence of the bare pair."""
STATE = "state"
"""The setting that says of a cell without a figure whether it is ``missing`` or ``left-out``; else it is barred."""

WEAK_RECOVERED = 0.5
"""Above chance, a pair that recovers less than this share of the way from chance to the bound is graded weak."""
Grade = Literal["none", "stale", "undecided", "chance", "weak", "compatible", "perfect"]
State = Literal["measured", "stale", "missing", "barred", "left-out"]


@attrs.frozen
class Part:
    """A component as a row or column of a report.

    Attributes:
        reference: Pinned reference, ``name@version``.
        digest: Manifest digest, ``sha256:...``.
        function: Function digest, ``value:sha256:...``.
        summary: Contract in short, label to text, for people.
    """

    reference: str
    digest: str
    function: str
    kind: str
    summary: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Figure:
    """An accuracy with its count and 95 % Wilson interval; all shares in [0, 1]."""

    accuracy: float
    correct: int
    count: int
    low: float
    high: float


@attrs.frozen
class Rung:
    """What one rung of the ladder of bridges gave for a pair.

    Attributes:
        name: Of the rung, as in ``compatkit.components.bridges.rungs.RUNGS``.
        seconds: That it took.
        images: Unlabelled images that it used.
        agreement: Share of held-out images of which it says what the head's own network says.
        accuracy: On test images, where there were any.
        chosen: Whether the figures of the cell are of this rung.
        labels: Labelled images that it was trained with.
    """

    name: str
    seconds: float
    images: int
    agreement: Figure
    accuracy: Figure | None = None
    chosen: bool = False
    labels: int = 0


@attrs.frozen
class Cell:
    """Extractor of one network, head of another, measured on the extractor's own test images.

    Attributes:
        wiring: ``refused``, ``needs-adapter`` or ``direct``; nothing is measured unless direct.
        promise: ``none``, ``shared-init``, ``shared-head`` or ``one-network``.
        grade: What the figures say.
        restricted: Examples of the common classes, arg max over the common outputs (as in the paper);
            None where nothing could be measured.
        unrestricted: The same examples, arg max over all outputs of the head.
        chance: Share of the most frequent common class among those examples.
        bound: The extractor with the head it was trained with, same images, same policy (n_aa).
        recovered: (accuracy - chance) / (bound - chance); None without a bound above chance.
        difference: Paired 95 % interval of accuracy minus bound.
        common: Common classes, by the data set's names.
        settings: How it was measured: metric, data, policy, batch size, seed, precision, the bound's head, device,
            ...; ``compatkit.evaluation.keys`` says which of them the figures depend on.
        findings: Lines of the check's report, for people.
        reason: Why there is no figure, or why it is stale; else empty.
        ladder: What each rung gave, where a bridge stands between the two.
    """

    extractor: str
    head: str
    wiring: str
    promise: str
    grade: Grade
    restricted: Figure | None = None
    unrestricted: Figure | None = None
    chance: float | None = None
    bound: Figure | None = None
    recovered: float | None = None
    difference: tuple[float, float] | None = None
    common: tuple[str, ...] = ()
    settings: dict[str, str | int | float] = attrs.field(factory=dict)
    findings: tuple[str, ...] = ()
    reason: str = ""
    ladder: tuple[Rung, ...] = ()

    @property
    def state(self) -> State:
        """What is known of the pair under the conditions asked for.

        ``measured``: the figures are of exactly these. ``stale``: they are of the same pair and question, but metric,
        images or bound changed since. ``missing``: nothing is known, and measuring would tell. ``barred``: it cannot
        be measured, as the parts cannot be wired or share no class with the images. ``left-out``: not asked for.
        """
        if self.restricted is not None:
            return "stale" if self.grade == "stale" else "measured"
        said = self.settings.get(STATE)
        return "missing" if said == "missing" else "left-out" if said == "left-out" else "barred"

    def left_out(self, reason: str) -> Cell:
        """Return the place of this cell where it was not asked for; nothing is told of it but the reason."""
        kept = (self.extractor, self.head, self.wiring, self.promise, "none")
        return Cell(*kept, settings={STATE: "left-out"}, reason=reason)

    def __repr__(self) -> str:
        said = [self.grade if self.state == "measured" else self.state]
        if self.restricted is not None:
            said.append(f"accuracy {self.restricted.accuracy:.3f} of {self.restricted.count:,} images")
        if self.bound is not None:
            said.append(f"bound {self.bound.accuracy:.3f}")
        if self.recovered is not None:
            said.append(f"recovered {self.recovered:.2f}")
        return f"Cell({self.extractor!r}, {self.head!r}: {', '.join([*said, *filter(None, [self.reason])])})"

    @property
    def own(self) -> bool:
        """True on the diagonal: the head was trained with this extractor."""
        return bool(self.settings.get("own", False))


def weak_or_compatible(accuracy: float, chance: float, limit: float) -> Grade:
    """Return ``weak`` for less than half of the way from chance up to the bound, or to 1 without one."""
    return "weak" if accuracy < chance + WEAK_RECOVERED * (limit - chance) else "compatible"
