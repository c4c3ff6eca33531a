"""Publish fits, recombinations, bridges, adapters and manifests; policies are checked before anything is linked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from compatkit.components.bridges.ladder import Bridge
from compatkit.components.bridges.publishing import publish as publish_bridge
from compatkit.components.domains import Adapted
from compatkit.components.drafts import drafts, training_record
from compatkit.components.images import PolicyData
from compatkit.components.loading import with_module
from compatkit.components.outcomes import PolicyOutcome, refusal
from compatkit.components.policy_checks import CANDIDATE, PolicyChecker
from compatkit.components.probes import remember_proof
from compatkit.components.recombinations import publish_recombination
from compatkit.components.registering import register
from compatkit.components.splitting import Parts, publish_split
from compatkit.components.stitching import publish_adapter
from compatkit.contracts.manifest import About, Manifest, Parent, Payload, to_bytes
from compatkit.errors import NotFound, PolicyBroken, UsageError
from compatkit.evaluation.adapter import ADAPTS, TARGETS, Adapter
from compatkit.evaluation.component import Component, pinned
from compatkit.evaluation.conditions import Progress
from compatkit.evaluation.recombination import Recombination
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.store import Store
from compatkit.training.fit import Fit
from compatkit.training.task_state import AuxiliaryHead, TaskState

PolicyResults = Mapping[str, tuple[PolicyChecker, PolicyOutcome]]


def publish(store: Store, what: Any, name: str | None, settings: Mapping[str, Any]) -> Any:
    """Publish an object according to its type; see ``Registry.publish``.

    Args:
        store: Registry to publish to.
        what: Object to publish.
        name: Name to publish under; None for a fit, which has a prefix.
        settings: Settings that the caller passed.

    Raises:
        UsageError: The object cannot be published, or a setting does not apply to it.
    """
    kind = next((kind for kind in PUBLISHERS if isinstance(what, kind)), None)
    if kind is None:
        raise UsageError(
            "Expected a result of Trainer.fit, split, adapt, recombine or bridge, an adapter or a manifest to publish, "
            f"got {what!r:.80}.",
            subject=what,
        )
    publisher, applicable = PUBLISHERS[kind]
    called = "prefix" if kind is Fit else "name"
    stated = dict(settings) if name is None else {"name": name, **settings}
    required = (called, "state") if kind is Manifest else (called,)
    if missing := [setting for setting in required if setting not in stated]:
        example = ", such as prefix='digits'" if missing[0] == "prefix" else ""
        raise UsageError(
            f"missing argument {missing[0]}= to publish a {kind.__name__}{example}.", subject=missing[0]
        )
    if other := stated.keys() - {called, *applicable}:
        known = ", ".join((called, *applicable))
        raise UsageError(
            f"publish has no setting {min(other)!r} for a {kind.__name__}; it takes {known}.",
            subject=min(other),
        )
    check_name(f"{stated[called]}/x" if kind is Fit else stated[called])
    return publisher(store, what, stated.pop(called), **stated)


def _fit(store: Store, fit: Fit, prefix: str, dry_run: bool = False, **settings: Any) -> dict[str, Any]:
    parts, results = _checked_parts(store, fit, lambda key: f"{prefix}/{key}", **settings)
    if dry_run:
        return {key: outcome for key, (_, outcome) in results.items()}
    return parts.publish(results, settings.get("version"), settings.get("major", False))


def _adapted(store: Store, adapted: Adapted, name: str, **settings: Any) -> str:
    parts, results = _checked_parts(store, adapted.fit, lambda key: name, **settings)
    published = parts.publish(results, settings.get("version"), settings.get("major", False))
    (reference,) = published.values()
    return reference


def _checked_parts(
    store: Store,
    fit: Fit,
    name_of: Callable[[str], str],
    version: str | None = None,
    major: bool = False,
    about: About | None = None,
    data: PolicyData = (),
    progress: Progress | None = None,
) -> tuple[FitParts, PolicyResults]:
    parts = FitParts.of(store, fit, name_of, about or About())
    return parts, parts.check_policies(version, major, (*data, *parts.images), progress)


def _bridge(store: Store, bridge: Bridge, name: str, **settings: Any) -> dict[str, str]:
    return {
        what: pinned(reference) for what, reference in publish_bridge(store, name, bridge, **settings).items()
    }


def _single_component(publish: Callable[..., Reference]) -> Callable[..., str]:
    """Return a publisher of one component that returns its pinned reference."""
    return lambda store, what, name, **settings: pinned(publish(store, name, what, **settings))


POLICY_SETTINGS = ("version", "major", "data", "progress")
PUBLISHERS: Mapping[type, tuple[Callable[..., Any], tuple[str, ...]]] = {
    Fit: (_fit, (*POLICY_SETTINGS, "about", "dry_run")),
    Adapted: (_adapted, (*POLICY_SETTINGS, "about")),
    Recombination: (_single_component(publish_recombination), ("version", "about")),
    Adapter: (_single_component(publish_adapter), ("version", "about")),
    Bridge: (_bridge, ("rung", "accept_doubtful", "about")),
    Manifest: (_single_component(register), ("state", *POLICY_SETTINGS)),
    Parts: (lambda store, parts, name, **settings: publish_split(store, parts, name, **settings), ("about",)),
}
"""Publisher of each type, and the settings that apply to it."""


@attrs.frozen(eq=False)
class FitParts:
    """Parts of a fit during publication; their blobs are stored, but no version refers to them yet.

    Attributes:
        store: Registry to publish to.
        parts: Extractors, then auxiliary heads, then heads, by key such as ``"mnist.extractor"``.
        released: Existing release of a head that was frozen in the fit.
        images: Images of the fit, for policies that measure on them.
    """

    store: Store
    parts: Mapping[str, Component]
    released: Mapping[str, Reference]
    images: PolicyData

    @classmethod
    def of(cls, store: Store, fit: Fit, name_of: Callable[[str], str], about: About) -> FitParts:
        """Derive and verify all parts of a fit, and store their blobs.

        Args:
            store: Registry to publish to.
            fit: Result of ``Trainer.fit``.
            name_of: Maps the key of a part to its name.
            about: Description of each part.
        """
        check_name(name_of("x"))
        all_drafts = list(drafts(fit))
        run = store.put_blob(dumps(fit.run))
        parts: dict[str, Component] = {}
        released: dict[str, Reference] = {}
        for draft in all_drafts:
            key, payload, name = draft.key, draft.put(store), name_of(draft.key)
            task, head = _trained(fit, key)
            parents = _origins(fit, draft.kind, task)
            if draft.parent is not None:
                digest, adapter = parts[draft.parent].digest, draft.kind == "adapter"
                relations = (ADAPTS, TARGETS) if adapter else ("trained_with",)
                parents = (*(Parent(relation, digest) for relation in relations), *parents)
            elif task is not None and task.freezes_extractor and task.task.extractor is not None:
                parents = (Parent("trained_with", task.task.extractor.digest), *parents)
            manifest = draft.manifest(payload, training_record(fit, run, task, head), parents, about)
            reference = Reference(name, digest=digest_of(to_bytes(manifest)))
            parts[key] = with_module(
                store, reference, manifest, draft.module, reference=f"{name}@{CANDIDATE}"
            )
            if (existing := _released(store, fit, name, payload)) is not None:
                released[key] = existing
        for state in fit.tasks.values():
            if (source := state.task.data.source) is not None:
                store.local_cache.remember_source(state.task.data.train.digest, attrs.asdict(source))
        sets = [state.task.data for state in fit.tasks.values()]
        return cls(
            store, parts, released, [split for data_set in sets for split in (data_set.test, data_set.train)]
        )

    def check_policies(
        self, version: str | None, major: bool, data: PolicyData, progress: Progress | None
    ) -> PolicyResults:
        """Check the policies of all parts as if published now; publish nothing, but record the measured results.

        Args:
            version: Version of all parts, or None.
            major: Whether to take the next MAJOR number.
            data: Images for policies.
            progress: Function called with done, total and a description.

        Raises:
            PolicyDataMissing: A policy's images are not available.
        """
        unreleased = {part.digest: part for part in self.parts.values()}
        results: dict[str, tuple[PolicyChecker, PolicyOutcome]] = {}
        for key, part in self.parts.items():
            if key not in self.released and not self._is_published(part, version):
                requirement = self.store.policy_requirement(
                    part.name, part.manifest, version=version, major=major
                )
                checker = PolicyChecker(self.store, part, data, unreleased, version, progress)
                results[key] = checker, checker.answer(requirement)
        return results

    def publish(self, results: PolicyResults, version: str | None, major: bool) -> dict[str, str]:
        """Publish all parts unless a policy forbids one of them; return pinned references.

        Args:
            results: Result of ``check_policies``.
            version: As for ``check_policies``.
            major: As for ``check_policies``.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome; nothing was published.
        """
        broken = [outcome for _, outcome in results.values() if not outcome.passed]
        if broken:
            others = [outcome.requirement.name for outcome in broken[1:]]
            more = f" So do {', '.join(others)}." if others else ""
            raise PolicyBroken(f"{refusal(broken[0])}{more} Nothing was published.", subject=broken[0])
        published: dict[str, str] = {}
        for key, part in self.parts.items():
            reference = self.released.get(key)
            if reference is None:
                policy_check = results[key][0] if key in results else None
                reference = self.store.publish(
                    part.name, part.manifest, version=version, major=major, policy_check=policy_check
                )
                remember_proof(self.store, part.manifest, reference.digest)
            published[key] = pinned(reference)
        return published

    def _is_published(self, part: Component, version: str | None) -> bool:
        """Return whether an earlier, interrupted call has published this part already."""
        references = self.store.references
        latest = references.latest(part.name) if version is None else Version.parse(version)
        return latest is not None and references.digest(part.name, latest) == part.digest


def _trained(fit: Fit, key: str) -> tuple[TaskState | None, AuxiliaryHead | None]:
    """Return the task that a part was trained for, or the auxiliary head that it is."""
    task, _, name = key.rpartition(".")
    return fit.tasks.get(task), fit.auxiliary.get(name) if task == "shared" else None


def _origins(fit: Fit, kind: str, task: TaskState | None) -> tuple[Parent, ...]:
    """Return the component that a part started from and, if they alone trained it, the frozen heads."""
    if task is None:
        return ()
    start = task.task.extractor if kind == "extractor" else task.task.head
    parents = [] if start is None else [Parent("initialised_from", start.digest)]
    if not task.supervised:
        heads = (head.origin for head in fit.auxiliary.values())
        parents += [Parent("adapted_against", head) for head in heads if head is not None]
    return tuple(parents)


def _released(store: Store, fit: Fit, name: str, payload: Payload) -> Reference | None:
    """Return the existing release of a head frozen in this fit, which is not published again."""
    head = fit.auxiliary.get(name.rsplit("shared.", 1)[-1])
    if head is None or not head.frozen:
        return None
    try:
        versions = store.versions(name)
    except NotFound:
        return None
    for version in reversed(versions):
        release = store.resolve(Reference(name, version))
        if store.manifest(release).payload.tensors == payload.tensors:
            return release
    return None
