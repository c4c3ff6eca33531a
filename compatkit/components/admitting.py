"""Policies asked of what comes in from elsewhere: answered from what was measured before, or measured as it comes in.

A version that is copied keeps its number, so that the answer is yes or no. Evidence counts whoever measured it: what
the registry has, and what comes along. Of several figures of one pair under the same conditions the lowest counts, and
for a bound the highest, so that nothing is gained by bringing a better one.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compatkit.components.loading import load, unloaded
from compatkit.components.outcomes import refusal
from compatkit.components.promises import CANDIDATE, Decider, Given, Pair, Progress, conditions_of
from compatkit.contracts.evidence import METRIC, METRIC_VERSION, Cell
from compatkit.errors import FormatError, PolicyBroken, PolicyUndecided
from compatkit.evaluation.conditions import ImageFacts, is_kept, key_of
from compatkit.evaluation.matrix import LoadedPart
from compatkit.evaluation.planning import is_normalised
from compatkit.evaluation.records import Cells
from compatkit.registry.copy.admission import Deciding
from compatkit.registry.evidence import StoredResult
from compatkit.registry.names import Reference, Version
from compatkit.registry.policies import Images, Policy
from compatkit.registry.publish import Decide
from compatkit.registry.questions import Question
from compatkit.registry.store import Store

SHOWN = 4
"""Pairs that a message lists."""


def deciding(*, measure: bool = False, data: Given = (), progress: Progress | None = None) -> Deciding:
    """Return what decides on versions that are imported, pulled or pushed into a registry.

    Args:
        measure: Measure what no evidence decides; else it is refused.
        data: Images at hand, as for ``promises.publish``.
        progress: Called with done, total and what is being done, while something is measured.
    """

    def make(store: Store) -> Decide:
        return Arrivals(store, measure, data, progress).decide

    return make


@attrs.frozen(eq=False)
class Arrivals:
    """Decides on versions whose bytes have come into a registry; see ``deciding``."""

    store: Store
    measure: bool = False
    data: Given = ()
    progress: Progress | None = None

    def decide(self, question: Question) -> None:
        """Answer what a policy asks of a version that comes in.

        Raises:
            PolicyBroken: A partner is not served; carries the outcome.
            PolicyUndecided: Figures are missing, and nothing is to be measured.
            PolicyDataMissing: The images that decide are not at hand, and are needed.
        """
        part = unloaded(self.store, Reference(question.name, digest=question.candidate))
        candidate = attrs.evolve(part, reference=f"{question.name}@{CANDIDATE}")
        decider = Recalling(
            self.store,
            candidate,
            self.data,
            progress=self.progress,
            measures=self.measure,
            name=question.name,
        )
        outcome = decider.answer(question)
        if not outcome.passed:
            raise PolicyBroken(
                refusal(
                    outcome,
                    "A copy keeps its number: have it published as the next MAJOR version where it comes from; or, to "
                    f"let it break with them here, set `compatkit policy set {question.name} --mode none` first",
                ),
                subject=outcome,
            )


@attrs.define(eq=False)
class Recalling(Decider):
    """Answers from what is kept; parts are loaded only where something has to be measured.

    Attributes:
        measures: Whether to measure what is not kept.
        name: Of the candidate.
    """

    measures: bool = False
    name: str = ""
    _cells_of: Cells = attrs.field(factory=Cells)

    def _loaded(self, reference: Reference) -> LoadedPart:
        digest = str(reference.digest)
        if digest not in self._parts:
            self._parts[digest] = unloaded(self.store, reference)
        return self._parts[digest]

    def _provide(self, pairs: Sequence[Pair], policy: Policy, wanted: Images) -> None:
        digest = wanted.digest if policy.cap is None else self._images(policy, wanted).digest
        for _, extractor, head, own in pairs:
            if own is not None:
                self._recall(own, head, policy, digest, highest=True)
            if own is None or own.function != extractor.function:
                self._recall(extractor, head, policy, digest, highest=False)
        lacking = [
            f"{left.reference} with {head.reference}"
            for _, extractor, head, own in pairs
            for left in (own, extractor)
            if left is not None and (left.function, head.function) not in self._cells
        ]
        if lacking and not self.measures:
            raise PolicyUndecided(self._undecided(policy, list(dict.fromkeys(lacking))), subject=policy)
        if lacking:
            modules: dict[str, LoadedPart] = {}
            whole = [
                (
                    text,
                    self._whole(left, modules),
                    self._whole(head, modules),
                    own and self._whole(own, modules),
                )
                for text, left, head, own in pairs
            ]
            super()._provide(whole, policy, wanted)

    def _recall(
        self, extractor: LoadedPart, head: LoadedPart, policy: Policy, digest: str, *, highest: bool
    ) -> None:
        """Take the figure of a pair that counts, if one is kept under exactly the conditions of the policy."""
        if (extractor.function, head.function) in self._cells:
            return
        found: list[Cell] = []
        for result in self.store.evidence.kept([extractor.function], [head.function]):
            try:
                if self._answers(result, extractor, head, policy, digest):
                    found.append(self._cells_of.of(result, extractor.reference, head.reference))
            except FormatError:
                continue  # a damaged figure is none
        found = [one for one in found if one.restricted is not None]
        if found:
            ordered = sorted(found, key=lambda one: one.restricted.accuracy if one.restricted else 0.0)
            self._cells[extractor.function, head.function] = ordered[-1 if highest else 0]

    def _answers(
        self, result: StoredResult, extractor: LoadedPart, head: LoadedPart, policy: Policy, digest: str
    ) -> bool:
        settings = self._cells_of.settings(result)
        images = ImageFacts(settings["data"], digest, settings["images"])
        normalised = is_normalised(extractor.manifest, head.manifest)
        asked = key_of(conditions_of(policy).settings(images, normalised=normalised, bound=""))
        return is_kept(asked, result.conditions) and (
            (policy.metric, policy.metric_version) == (METRIC, METRIC_VERSION)
        )

    def _whole(self, part: LoadedPart, known: dict[str, LoadedPart]) -> LoadedPart:
        """Return a part with its module; signatures of released parts are asked for as by any load.

        That of the candidate was asked for before its bytes came, and what has no version of its own here is covered by
        that of the part whose manifest names it.
        """
        if part.digest not in known:
            name, _, version = part.reference.partition("@")
            released = Version.parse(version) if version not in ("", CANDIDATE) else None
            reference = Reference(name, released, digest=part.digest)
            made = load(self.store, reference, admitted=released is None)
            known[part.digest] = attrs.evolve(made, reference=part.reference)
        return known[part.digest]

    def _undecided(self, policy: Policy, lacking: Sequence[str]) -> str:
        more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
        return (
            f"{self.name}: no result is kept of {'; '.join(lacking[:SHOWN])}{more} under the conditions of the policy "
            f"{policy}. Let it be measured as it comes in (measure=True, on the command line --measure), bring its "
            "results along from where it was measured, or let it in as it is (unmeasured=True, --unmeasured), which "
            "the log of the policy tells."
        )
