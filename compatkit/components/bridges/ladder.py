"""The ladder of bridges: rungs from the cheapest to the most expensive, and their results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.bridges.judging import Judged, rises
from compatkit.contracts.evidence import Figure, Rung
from compatkit.errors import IncompatibleError, UsageError, suggest, type_of
from compatkit.foundation.display import Shown
from compatkit.reports.tabular import Tabular

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.components.bridges.closed import Candidate
    from compatkit.evaluation.adapter import Adapter
    from compatkit.evaluation.recombination import Recombination

RUNGS: dict[str, str] = {
    "direct": "as it is, with stored statistics",
    "statistics": "the head's statistics estimated anew",
    "permutation": "channels permuted",
    "procrustes": "a rotation of the channels",
    "ridge": "a linear map of the channels",
    "ridge-procrustes": "the same, shrunk to the rotation",
    "ridge3x3": "a 3x3 convolution",
    "absorbed": "the head's first layers refitted, nothing added",
    "stitch": "a linear map, trained towards the logits of the head's own network",
    "stitch-labels": "a linear map, trained with labels",
    "finetune": "a linear map and the whole head, trained with labels",
    "infomax": "the head's first layers and norms, trained to answer surely and evenly",
}
"""Descriptions of the rungs."""
LABELED = frozenset({"stitch-labels", "finetune"})
"""Rungs that need labels."""
ON_REQUEST = frozenset({"infomax"})
"""Rungs tried only if named: they harm unbalanced classes."""
UNFITTED = frozenset({"direct", "statistics"})
"""Rungs that fit nothing to features."""
TRAINED = frozenset({"stitch", "stitch-labels", "finetune", "infomax"})
"""Iteratively trained rungs; if their training fails, the others remain valid."""
TAUGHT = frozenset({"stitch"})
"""Rungs trained to imitate the head's own network: their agreement overstates their quality."""
ADAPTERS = ("permutation", "procrustes", "ridge", "ridge-procrustes", "ridge3x3", "stitch")
"""Rungs without labels that insert an adapter and leave both parts unchanged."""
BEST = "best"
"""For a matrix: of statistics alone and the adapters in closed form, the one with the highest agreement."""


def chosen_rungs(names: Sequence[str] | None, labeled: bool) -> list[str]:
    """Return the rungs to try, in order.

    Args:
        names: Requested rungs; None for all except those on request, and those that need missing labels.
        labeled: Whether there are labels.

    Raises:
        UsageError: A name is not a rung, or a rung needs labels and there are none.
    """
    if names is None:
        return [one for one in RUNGS if one not in ON_REQUEST and (labeled or one not in LABELED)]
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise UsageError(f"rungs= expects a list of names, got {names!r:.80}.")
    for name in names:
        if not isinstance(name, str) or name not in RUNGS:
            raise UsageError(
                f"Unknown rung {name!r:.80}; known are {', '.join(RUNGS)}.{suggest(name, RUNGS)}",
                subject=name,
            )
        if name in LABELED and not labeled:
            raise UsageError(
                f"The rung {name} is trained with labels; pass labels= (--labels), images with their classes."
            )
    if not names:
        raise UsageError(f"Expected at least one rung; known are {', '.join(RUNGS)}.")
    return [one for one in RUNGS if one in set(names)]


BRIDGED = "head"
"""Key of a judgement for the digest of the original head, which a refitted one replaces."""
ANEW = ("batch", "reestimate")
"""Batch-norm policies with statistics of the present features."""


@attrs.frozen(eq=False)
class RungResult:
    """The result of one rung.

    Attributes:
        rung: Its name.
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
        right: Which of them are right.
        note: Why it was left out, or a remark.
        candidate: The bridge; None if it was left out.
    """

    rung: str
    agreed: Judged | None = None
    explained: float | None = None
    images: int = 0
    estimated: int = 0
    labels: int = 0
    seconds: float = 0.0
    accuracy: Figure | None = None
    checked: Judged | None = None
    right: Tensor | None = attrs.field(default=None, repr=False)
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
    def judged(self) -> Judged | None:
        """Judgement by held-out labels for a rung trained with labels, else by agreement."""
        return self.checked if self.rung in LABELED and self.agreed is not None else self.agreed

    @property
    def meaning(self) -> str:
        """``"fit"``, ``"doubtful"`` or ``"no fit"``; empty if the rung was left out."""
        return "" if self.judged is None else self.judged.says

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        agreed, checked = self.agreed, self.checked
        figures = {"agreement": self.agreement, "accuracy": self.accuracy}
        figures["checked"] = None if checked is None else checked.figure
        plain = ("rung", "explained", "images", "estimated", "labels", "seconds", "note")
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: _shown(one) for name, one in figures.items()},
            "chance": None if agreed is None else agreed.chance,
            "kappa": None if agreed is None else agreed.kappa,
            "checked_chance": None if checked is None else checked.chance,
            "says": self.meaning,
        }


def _shown(one: Figure | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"share": one.accuracy, "low": one.low, "high": one.high, "images": one.count}


@attrs.frozen(eq=False, repr=False)
class Bridge(Shown, Tabular):
    """A bridged pair; as a table it has a row for each rung.

    Attributes:
        extractor: ``name@version``.
        head: ``name@version``.
        steps: Result of each rung, in the order of trying.
        chosen: Name of the chosen rung.
        recombination: The resulting network, in eval mode.
        facts: Names, digests and numbers of the images, where features were paired, seed; ``largest``, the share of
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
    facts: Mapping[str, Any]
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
        for one in self.steps:
            if one.rung == rung:
                return one
        climbed = ", ".join(one.rung for one in self.steps)
        raise UsageError(f"The rung {rung!r:.40} was not climbed; climbed were {climbed}.", subject=rung)

    @property
    def agreement(self) -> Figure:
        """Agreement of the chosen rung."""
        found = self.step(self.chosen).agreement
        if found is None:
            raise UsageError(f"The rung {self.chosen} was left out.")
        return found

    @property
    def says(self) -> str:
        """Verdict on the chosen rung: ``"fit"``, ``"doubtful"`` or ``"no fit"``."""
        return self.step(self.chosen).meaning

    @property
    def judged_by(self) -> str:
        """``"labels"`` if the chosen rung was trained with some, else ``"agreement"``."""
        return "labels" if self.chosen in LABELED else "agreement"

    def lines(self) -> list[str]:
        """Return lines of a report: the chosen rung, the result of each rung, and the notes."""
        found = [f"Bridged by {self.chosen}: {RUNGS[self.chosen]}; {self.says}."]
        for one in self.steps:
            if one.agreement is None:
                found.append(f"Rung {one.rung}: left out: {one.note}")
                continue
            right = "" if one.accuracy is None else f", accuracy {one.accuracy.accuracy:.3f}"
            found.append(
                f"Rung {one.rung}: agreement {one.agreement.accuracy:.3f}{right}, {one.images:,} images, "
                f"{one.seconds:.2f} s."
            )
        return [*found, *self.notes]

    def ladder(self) -> tuple[Rung, ...]:
        """Return the results of the rungs that were not left out, as a cell of a matrix stores them."""
        return tuple(
            Rung(
                one.rung,
                one.seconds,
                one.images,
                one.agreement,
                one.accuracy,
                one.rung == self.chosen,
                one.labels,
            )
            for one in self.steps
            if one.agreement is not None
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        steps = [one.to_json() for one in self.steps]
        return {
            "extractor": self.extractor,
            "head": self.head,
            "chosen": self.chosen,
            "says": self.says,
            "judged_by": self.judged_by,
            "steps": steps,
            "not_climbed": list(self.not_climbed),
            "facts": dict(self.facts),
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
    """Return the rung with the highest agreement beyond chance; the cheaper of equals.

    A rung trained to agree is chosen only if there is no other, because it learns the mistakes of the head's own
    network on these images. A rung trained with labels is chosen if it is significantly more accurate than the best
    other on labeled images that neither was fitted to: it may know what the head's own network does not.

    Raises:
        IncompatibleError: Every rung was left out; the message says why.
    """
    there = [one for one in steps if one.agreed is not None]
    if not there:
        told = "\n".join(f"{one.rung}: {one.note}" for one in steps)
        raise IncompatibleError(f"No rung could be climbed:\n{told}")
    learnt = [one for one in there if one.rung in LABELED]
    free = [one for one in there if one not in learnt]
    if not free:
        return max(learnt, key=_right)
    best = max([one for one in free if one.rung not in TAUGHT] or free, key=_agrees)
    taught = max(learnt, key=_right, default=None)
    if taught is None or taught.right is None or best.right is None:
        return best
    return taught if rises(taught.right, best.right) else best


def reason(chosen: RungResult, steps: Sequence[RungResult]) -> str:
    """Return a sentence on the decision if labels decided; empty if agreement did.

    Args:
        chosen: The result that was chosen.
        steps: All results.
    """
    if chosen.rung not in LABELED or chosen.checked is None:
        return ""
    found, best = chosen.checked.figure, [one for one in steps if one.rung not in LABELED and one.checked]
    beside = ""
    if best:
        other = max(best, key=_right)
        share = other.checked.figure.accuracy if other.checked is not None else 0.0
        beside = f", where {other.rung} reaches {share:.3f}"
    return (
        f"Labels decided for {chosen.rung}: it is right on {found.accuracy:.3f} of {found.count:,} labeled images "
        f"that nothing was fitted to ({found.low:.3f} to {found.high:.3f}){beside} and one answer to all "
        f"{chosen.checked.chance:.3f}. By this it is judged, and not by its agreement."
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
    head's weights, or needs statistics that the policy replaces by stored ones, does not fit.

    Args:
        bridges: By pinned references of extractor and head.
        bn_policy: Batch-norm policy of the matrix.

    Raises:
        UsageError: A bridge is stored under other references than its own, or does not fit a matrix.
    """
    if not isinstance(bridges, Mapping):
        raise UsageError(
            "bridges= expects bridges by the pinned references of extractor and head, as bridges_between returns "
            f"them; got {type_of(bridges)}."
        )
    for pair, one in bridges.items():
        if not isinstance(one, Bridge) or pair != (one.extractor, one.head):
            own = f"({one.extractor!r}, {one.head!r})" if isinstance(one, Bridge) else "a Bridge"
            raise UsageError(f"bridges= has the key {pair!r:.120} where {own} is expected.", subject=pair)
        _check(one, bn_policy)
    return {pair: one.recombination.inserted for pair, one in bridges.items()}


def _check(one: Bridge, bn_policy: str) -> None:
    made = one.step(one.chosen).built
    if made.refitted or made.stored:
        what = "changes the head's weights" if made.refitted else "keeps the head's stored statistics"
        raise UsageError(
            f"The bridge of {one.extractor} and {one.head} by {one.chosen} {what}; a matrix needs unchanged parts with "
            "the statistics of its policy. Publish the bridge, and measure what Registry.load returns.",
            subject=one.chosen,
        )
    if made.estimates:
        check_policy(f"The bridge of {one.extractor} and {one.head} by {one.chosen}", bn_policy)


def check_policy(bridge: str, bn_policy: str) -> None:
    """Raise if a batch-norm policy would replace the statistics of a bridge.

    Args:
        bridge: Description of a bridge with estimated batch-norm statistics.
        bn_policy: Policy of the matrix.

    Raises:
        UsageError: The policy uses stored statistics.
    """
    if bn_policy not in ANEW:
        raise UsageError(
            f"{bridge} has its own estimated batch-norm statistics, which {bn_policy!r} would replace by stored "
            f"ones. Use normalization {' or '.join(map(repr, ANEW))}.",
            subject=bn_policy,
        )
