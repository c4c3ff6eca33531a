"""The ladder of bridges: rungs from the cheapest to the most expensive, and their results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.bridges.judging import Judgment, significantly_more
from compatkit.contracts.evidence import Figure, Rung
from compatkit.errors import IncompatibleError, UsageError, type_of
from compatkit.foundation.arguments import texts_of
from compatkit.foundation.display import Shown
from compatkit.reports.tabular import Tabular

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.components.bridges.candidates import Candidate
    from compatkit.evaluation.adapter import Adapter
    from compatkit.evaluation.recombination import Recombination

RUNGS = (
    "direct",
    "statistics",
    "permutation",
    "procrustes",
    "ridge",
    "ridge-procrustes",
    "ridge3x3",
    "absorbed",
    "stitch",
    "stitch-labels",
    "finetune",
    "infomax",
)
"""Names of compatkit's own rungs, in the order of the ladder; other plugins' rungs come after them."""
LABELED = frozenset({"stitch-labels", "finetune"})
"""Rungs that need labels."""
WITHOUT_ADAPTER = frozenset({"direct", "statistics", "absorbed", "infomax"})
"""Rungs without labels that leave the features as they are, or change the head."""
ON_REQUEST = frozenset({"infomax"})
"""Rungs tried only if named: they harm unbalanced classes."""
BEST = "best"
"""Name for a matrix: the rung of ``BEST_OF`` with the highest agreement."""
BEST_OF = ("statistics", "permutation", "procrustes", "ridge", "ridge-procrustes", "ridge3x3")


def chosen_rungs(names: Sequence[str] | None, labeled: bool) -> list[str]:
    """Return the rungs to try, in order.

    Args:
        names: Requested rungs; None for compatkit's own except those on request, and those that need missing labels.
        labeled: Whether there are labels.

    Raises:
        UsageError: A name is not a rung, or a rung needs labels and there are none.
    """
    from compatkit.plugins.discovery import require

    if names is None:
        return [rung for rung in RUNGS if rung not in ON_REQUEST and (labeled or rung not in LABELED)]
    if not names:
        raise UsageError(f"Expected at least one rung; known are {', '.join(RUNGS)}.")
    known = [
        require("rungs", name) for name in texts_of(names, "rungs", "the name of a rung, such as 'ridge'")
    ]
    if missing := [name for name in known if name in LABELED and not labeled]:
        raise UsageError(
            f"The rung {missing[0]} is trained with labels; pass labeled images as labels= (--labels)."
        )
    return sorted(dict.fromkeys(known), key=lambda name: RUNGS.index(name) if name in RUNGS else len(RUNGS))


REESTIMATING = ("batch", "reestimate")
"""Batch-norm policies with statistics of the actual features."""


@attrs.frozen(eq=False)
class RungResult:
    """The result of one rung.

    Attributes:
        rung: Name of the rung.
        agreed: Agreement with the head's own network on held-out images; None if the rung was left out.
        explained: R2 of the fitted features; None if nothing was fitted.
        images: Number of unlabeled images used: for pairing features or training, for ``statistics`` for the
            estimate.
        estimated: Number of images for estimating batch-norm statistics.
        labels: Number of labeled images trained on.
        seconds: Time for fitting, training and estimating statistics. Shared values such as moments are computed once
            but counted for each rung that uses them; computing features is not counted.
        accuracy: On test images, if given.
        checked: Accuracy on labeled images that nothing was fitted to, if labels were given.
        right: Which labeled images are classified correctly, bool ``(n,)``.
        taught: Whether it was trained to imitate the head's own network; its agreement then overstates its quality.
        note: Why it was left out, or a remark.
        candidate: The bridge; None if it was left out.
    """

    rung: str
    agreed: Judgment | None = None
    explained: float | None = None
    images: int = 0
    estimated: int = 0
    labels: int = 0
    seconds: float = 0.0
    accuracy: Figure | None = None
    checked: Judgment | None = None
    right: Tensor | None = attrs.field(default=None, repr=False)
    taught: bool = False
    note: str = ""
    candidate: Candidate | None = attrs.field(default=None, repr=False)

    @property
    def built(self) -> Candidate:
        """The bridge.

        Raises:
            UsageError: The rung was left out.
        """
        if self.candidate is None:
            raise UsageError(f"The rung {self.rung} was left out: {self.note}", subject=self.rung)
        return self.candidate

    @property
    def agreement(self) -> Figure | None:
        """Share of held-out images with the prediction of the head's own network; None if the rung was left out."""
        return None if self.agreed is None else self.agreed.figure

    @property
    def judged(self) -> Judgment | None:
        """Judgment by held-out labels for a rung trained with labels, else by agreement."""
        return self.checked if self.labels and self.agreed is not None else self.agreed

    @property
    def meaning(self) -> str:
        """``"fit"``, ``"doubtful"`` or ``"no fit"``; empty if the rung was left out."""
        return "" if self.judged is None else self.judged.verdict

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        agreed, checked = self.agreed, self.checked
        figures = {"agreement": self.agreement, "accuracy": self.accuracy}
        figures["checked"] = None if checked is None else checked.figure
        plain = ("rung", "explained", "images", "estimated", "labels", "seconds", "note")
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: _shown(share) for name, share in figures.items()},
            "chance": None if agreed is None else agreed.chance,
            "kappa": None if agreed is None else agreed.kappa,
            "checked_chance": None if checked is None else checked.chance,
            "says": self.meaning,
        }


def _shown(share: Figure | None) -> dict[str, Any] | None:
    if share is None:
        return None
    return {"share": share.accuracy, "low": share.low, "high": share.high, "images": share.count}


@attrs.frozen(eq=False, repr=False)
class Bridge(Shown, Tabular):
    """A bridged pair; as a table it has a row for each rung.

    Attributes:
        extractor: ``name@version``.
        head: ``name@version``.
        steps: Result of each rung, in the order of trying.
        chosen: Name of the chosen rung.
        recombination: The resulting network, in eval mode.
        details: Names, digests and numbers of the images, where features were paired, seed; ``largest``, the share of
            the most frequent prediction of the head's own network on held-out images; and ``reference``, its accuracy
            on the test images, if any.
        notes: Remarks, one sentence each.
        not_climbed: Rungs not tried because an earlier one sufficed.
    """

    extractor: str
    head: str
    steps: tuple[RungResult, ...]
    chosen: str
    recombination: Recombination
    details: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    not_climbed: tuple[str, ...] = ()

    _columns = ("extractor", "head", "rung", "chosen", "agreement", "accuracy")

    def _rows(self) -> list[dict[str, Any]]:
        pair = {"extractor": self.extractor, "head": self.head}
        plain = ("explained", "images", "labels", "seconds", "note")
        return [
            {**pair, "rung": result.rung, "chosen": result.rung == self.chosen}
            | {
                name: (figure := getattr(result, name)) and figure.accuracy
                for name in ("agreement", "accuracy")
            }
            | {name: getattr(result, name) for name in plain}
            for result in self.steps
        ]

    def step(self, rung: str) -> RungResult:
        """Return the result of a rung.

        Raises:
            UsageError: The rung was not tried.
        """
        for result in self.steps:
            if result.rung == rung:
                return result
        tried = ", ".join(result.rung for result in self.steps)
        raise UsageError(f"The rung {rung!r:.40} was not tried; tried were {tried}.", subject=rung)

    @property
    def agreement(self) -> Figure:
        """Agreement of the chosen rung."""
        agreement = self.step(self.chosen).agreement
        if agreement is None:
            raise UsageError(f"The rung {self.chosen} was left out.")
        return agreement

    @property
    def says(self) -> str:
        """Verdict on the chosen rung: ``"fit"``, ``"doubtful"`` or ``"no fit"``."""
        return self.step(self.chosen).meaning

    @property
    def inserts(self) -> bool:
        """Whether the chosen rung inserts an adapter and leaves both parts unchanged."""
        candidate = self.step(self.chosen).built
        return candidate.fitted is not None and not candidate.refitted

    @property
    def judged_by(self) -> str:
        """``"labels"`` if the chosen rung was trained with some, else ``"agreement"``."""
        return "labels" if self.step(self.chosen).labels else "agreement"

    def lines(self) -> list[str]:
        """Return lines of a report: the chosen rung, the result of each rung, and the notes."""
        lines = [f"Bridged by {self.chosen}: {self.says}."]
        for result in self.steps:
            if result.agreement is None:
                lines.append(f"Rung {result.rung}: left out: {result.note}")
                continue
            right = "" if result.accuracy is None else f", accuracy {result.accuracy.accuracy:.3f}"
            lines.append(
                f"Rung {result.rung}: agreement {result.agreement.accuracy:.3f}{right}, {result.images:,} images, "
                f"{result.seconds:.2f} s."
            )
        return [*lines, *self.notes]

    def ladder(self) -> tuple[Rung, ...]:
        """Return the results of the rungs that were not left out, as a cell of a matrix stores them."""
        return tuple(
            Rung(
                result.rung,
                result.seconds,
                result.images,
                result.agreement,
                result.accuracy,
                result.rung == self.chosen,
                result.labels,
            )
            for result in self.steps
            if result.agreement is not None
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        steps = [result.to_json() for result in self.steps]
        return {
            "extractor": self.extractor,
            "head": self.head,
            "chosen": self.chosen,
            "says": self.says,
            "judged_by": self.judged_by,
            "steps": steps,
            "not_climbed": list(self.not_climbed),
            "facts": dict(self.details),
            "notes": list(self.notes),
        }

    def to_png(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """Return a PNG of the ladder, agreement and accuracy against seconds; also write it if a path is given.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.ladder import draw
        from compatkit.reports.writing import write

        picture = draw(self.ladder(), f"{self.extractor} + {self.head}")
        if path is not None:
            write(path, picture)
        return picture

    def __str__(self) -> str:
        return "\n".join([f"{self.extractor} + {self.head}", *self.lines()])


def choose(steps: Sequence[RungResult]) -> RungResult:
    """Return the rung with the highest agreement above chance; of equals the cheaper one.

    A rung trained to agree is chosen only if there is no other, because it learns the mistakes of the head's own
    network on these images. A rung trained with labels is chosen if it is significantly more accurate than the best
    other on labeled images that neither was fitted to: it may know what the head's own network does not.

    Raises:
        IncompatibleError: Every rung was left out; the message says why.
    """
    available = [step for step in steps if step.agreed is not None]
    if not available:
        reasons = "\n".join(f"{step.rung}: {step.note}" for step in steps)
        raise IncompatibleError(f"No rung could be built:\n{reasons}")
    labeled = [step for step in available if step.labels]
    unlabeled = [step for step in available if step not in labeled]
    if not unlabeled:
        return max(labeled, key=_right)
    best = max([step for step in unlabeled if not step.taught] or unlabeled, key=_agrees)
    best_labeled = max(labeled, key=_right, default=None)
    if best_labeled is None or best_labeled.right is None or best.right is None:
        return best
    return best_labeled if significantly_more(best_labeled.right, best.right) else best


def reason(chosen: RungResult, steps: Sequence[RungResult]) -> str:
    """Return a sentence on the decision if labels decided; empty if agreement did.

    Args:
        chosen: The result that was chosen.
        steps: All results.
    """
    if not chosen.labels or chosen.checked is None:
        return ""
    figure = chosen.checked.figure
    unlabeled = [step for step in steps if not step.labels and step.checked]
    comparison = ""
    if unlabeled:
        other = max(unlabeled, key=_right)
        share = other.checked.figure.accuracy if other.checked is not None else 0.0
        comparison = f", where {other.rung} reaches {share:.3f}"
    return (
        f"{chosen.rung} was chosen and judged by labels: accuracy {figure.accuracy:.3f} on {figure.count:,} labeled "
        f"images that nothing was fitted to ({figure.low:.3f} to {figure.high:.3f}){comparison}; chance is "
        f"{chosen.checked.chance:.3f}."
    )


def _agrees(step: RungResult) -> tuple[float, float]:
    return step.agreed.rank if step.agreed is not None else (0.0, 0.0)


def _right(step: RungResult) -> float:
    return step.checked.figure.accuracy if step.checked is not None else 0.0


def inserted(
    bridges: Mapping[tuple[str, str], Bridge], bn_policy: str
) -> dict[tuple[str, str], tuple[Adapter, ...]]:
    """Return the adapters of bridges by (extractor, head) reference.

    A matrix measures unchanged parts with adapters between, under one batch-norm policy. A bridge that changes the
    head's weights, or needs statistics that the policy replaces by stored ones, cannot be part of it.

    Args:
        bridges: Bridges by pinned references of extractor and head.
        bn_policy: Batch-norm policy of the matrix.

    Raises:
        UsageError: A key is not the pair of the bridge, or the bridge cannot be part of a matrix.
    """
    if not isinstance(bridges, Mapping):
        raise UsageError(
            "bridges= expects bridges by the pinned references of extractor and head, as bridges.between returns "
            f"them; got {type_of(bridges)}."
        )
    for pair, bridge in bridges.items():
        if not isinstance(bridge, Bridge) or pair != (bridge.extractor, bridge.head):
            own = f"({bridge.extractor!r}, {bridge.head!r})" if isinstance(bridge, Bridge) else "a Bridge"
            raise UsageError(f"bridges= has the key {pair!r:.120} where {own} is expected.", subject=pair)
        _check(bridge, bn_policy)
    return {pair: bridge.recombination.inserted for pair, bridge in bridges.items()}


def _check(bridge: Bridge, bn_policy: str) -> None:
    candidate = bridge.step(bridge.chosen).built
    if candidate.refitted or candidate.stored:
        what = "changes the head's weights" if candidate.refitted else "keeps the head's stored statistics"
        raise UsageError(
            f"The bridge of {bridge.extractor} and {bridge.head} by {bridge.chosen} {what}; a matrix needs "
            "unchanged parts with the statistics of its policy. Publish the bridge, and measure what "
            "Registry.load returns.",
            subject=bridge.chosen,
        )
    if candidate.estimates:
        check_policy(f"The bridge of {bridge.extractor} and {bridge.head} by {bridge.chosen}", bn_policy)


def check_policy(bridge: str, bn_policy: str) -> None:
    """Raise if a batch-norm policy would replace the statistics of a bridge.

    Args:
        bridge: Description of a bridge with estimated batch-norm statistics.
        bn_policy: Policy of the matrix.

    Raises:
        UsageError: The policy uses stored statistics.
    """
    if bn_policy not in REESTIMATING:
        raise UsageError(
            f"{bridge} has its own estimated batch-norm statistics, which {bn_policy!r} would replace by stored "
            f"ones. Use bn_policy {' or '.join(map(repr, REESTIMATING))}.",
            subject=bn_policy,
        )
