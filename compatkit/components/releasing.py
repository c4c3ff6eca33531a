"""From a fit to versions: every part is ready, and every policy answered, before the first version is linked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from compatkit.components.outcomes import Outcome, refusal
from compatkit.components.promises import Decider, Given, Progress, candidate_of
from compatkit.components.proofs import remember_proof
from compatkit.components.publishing import Draft, drafts, training_facts
from compatkit.contracts.codec import digest as digest_of
from compatkit.contracts.codec import dumps
from compatkit.contracts.manifest import About, Manifest, Parent, Payload, to_bytes
from compatkit.errors import PolicyBroken
from compatkit.evaluation.matrix import LoadedPart
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.store import Store
from compatkit.training.fit import Fit
from compatkit.training.state import AuxiliaryHead, TaskState


@attrs.frozen(eq=False)
class Ready:
    """A part of a fit with its manifest; its blobs are put, and nothing names them yet.

    Attributes:
        key: ``"mnist.extractor"``.
        part: With its module.
        released: Where it is released already: a head that was frozen in the fit.
    """

    key: str
    name: str
    part: LoadedPart
    released: Reference | None = None

    @property
    def manifest(self) -> Manifest:
        """Of the part."""
        return self.part.manifest


@attrs.frozen(eq=False)
class Release:
    """The parts of one fit on their way into a registry.

    Attributes:
        parts: Extractors, then shared auxiliary heads, then heads.
        version: For all parts; None takes the least step of each.
        major: Each takes its next MAJOR number.
        given: Images at hand to answer policies with.
    """

    store: Store
    parts: Sequence[Ready]
    version: str | None = None
    major: bool = False
    given: Given = ()
    progress: Progress | None = None

    @classmethod
    def of(
        cls,
        store: Store,
        fit: Fit,
        named: Callable[[str], str],
        *,
        about: About | None = None,
        version: str | None = None,
        major: bool = False,
        data: Given = (),
        progress: Progress | None = None,
    ) -> Release:
        """Derive and prove all parts of a fit, and put their blobs; arguments as for ``Registry.publish``.

        ``named`` gives the name of a part by its key, such as ``"mnist.extractor"``.
        """
        check_name(named("x"))
        ready = list(drafts(fit))
        run = store.put_blob(dumps(fit.run))
        parts: dict[str, Ready] = {}
        for draft in ready:
            payload, name = draft.put(store), named(draft.key)
            released = _released(store, fit, name, payload)
            task, head = _trained(fit, draft.key)
            parents = ()
            if draft.parent is not None:
                parents = (Parent("trained_with", parts[draft.parent].part.digest),)
            elif task is not None and task.freezes_extractor and task.task.extractor is not None:
                parents = (Parent("trained_with", task.task.extractor.digest),)
            facts = training_facts(fit, run, task, head)
            manifest = draft.manifest(
                payload, facts, (*parents, *_origins(fit, draft, task)), about or About()
            )
            part = candidate_of(store, name, digest_of(to_bytes(manifest)), manifest, draft.module)
            parts[draft.key] = Ready(draft.key, name, part, released)
        for state in fit.tasks.values():
            if (source := state.task.data.source) is not None:
                store.memory.found(state.task.data.train.digest, attrs.asdict(source))
        known = [
            split for state in fit.tasks.values() for split in (state.task.data.test, state.task.data.train)
        ]
        return cls(store, tuple(parts.values()), version, major, (*data, *known), progress)

    def rehearse(self) -> dict[str, Outcome]:
        """Return what policies say of each part, as if all were published now; links nothing, keeps the figures.

        Raises:
            PolicyDataMissing: The images that decide are not at hand.
        """
        return {key: outcome for key, (_, outcome) in self._answered().items()}

    def publish(self) -> dict[str, Reference]:
        """Publish all parts, unless a policy forbids one of them.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome; nothing was published.
            PolicyDataMissing: The images that decide are not at hand; nothing was published.
        """
        answered = self._answered()
        broken = [outcome for _, outcome in answered.values() if not outcome.passed]
        if broken:
            others = [one.question.name for one in broken[1:]]
            more = f" So do {', '.join(others)}." if others else ""
            raise PolicyBroken(f"{refusal(broken[0])}{more} Nothing was published.", subject=broken[0])
        published: dict[str, Reference] = {}
        for one in self.parts:
            decider = answered[one.key][0] if one.key in answered else None
            published[one.key] = one.released or self._publish(one, decider)
        return published

    def _answered(self) -> Mapping[str, tuple[Decider, Outcome]]:
        kin = {one.part.digest: one.part for one in self.parts}
        answered: dict[str, tuple[Decider, Outcome]] = {}
        for one in self.parts:
            if one.released is not None or self._is_there(one):
                continue
            question = self.store.asks(one.name, one.manifest, version=self.version, major=self.major)
            decider = Decider(self.store, one.part, self.given, kin, self.version, self.progress)
            answered[one.key] = decider, decider.answer(question)
        return answered

    def _is_there(self, one: Ready) -> bool:
        """Tell whether an earlier call published this part: a group is completed by the same call."""
        if self.version is None:
            latest = self.store.references.latest(one.name)
        else:
            latest = Version.parse(self.version)
        return latest is not None and self.store.references.digest(one.name, latest) == one.part.digest

    def _publish(self, one: Ready, decider: Decider | None) -> Reference:
        reference = self.store.publish(
            one.name, one.manifest, version=self.version, major=self.major, decide=decider
        )
        remember_proof(self.store, one.manifest, reference)
        return reference


def _trained(fit: Fit, key: str) -> tuple[TaskState | None, AuxiliaryHead | None]:
    """Return the task that a part was trained for, or the shared head that it is."""
    task, _, name = key.rpartition(".")
    return fit.tasks.get(task), fit.auxiliary.get(name) if task == "shared" else None


def _origins(fit: Fit, draft: Draft, task: TaskState | None) -> tuple[Parent, ...]:
    """Return the component that a part started from and, where that is all it learnt from, the frozen heads."""
    if task is None:
        return ()
    start = task.task.extractor if draft.kind == "extractor" else task.task.head
    found = [] if start is None else [Parent("initialised_from", start.digest)]
    if not task.supervised:
        heads = (one.origin for one in fit.auxiliary.values())
        found += [Parent("adapted_against", one) for one in heads if one is not None]
    return tuple(found)


def _released(store: Store, fit: Fit, name: str, payload: Payload) -> Reference | None:
    """Return the release of a head that was frozen in this fit: it is the same part, not a new one."""
    head = fit.auxiliary.get(name.rsplit("shared.", 1)[-1])
    if head is None or not head.frozen or name not in store.names(name):
        return None
    for version in reversed(store.versions(name)):
        release = store.resolve(Reference(name, version))
        if store.manifest(release).payload.tensors == payload.tensors:
            return release
    return None
