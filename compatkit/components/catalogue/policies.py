"""Policies of a name, and what kept results say of each version under them."""

from __future__ import annotations

from typing import Any

import attrs

from compatkit.components.catalogue.signers import shown_time
from compatkit.components.catalogue.texts import error_line, line
from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError
from compatkit.registry.index.search import SearchResult
from compatkit.registry.names import Reference, Version
from compatkit.registry.policy_scopes import matches
from compatkit.registry.policylog import Revision
from compatkit.registry.store import Store

MAX_ROWS = 100


@attrs.frozen(eq=False)
class Outcomes:
    """Policies of a registry, with their outcomes by kept results: nothing is measured.

    Attributes:
        store: The registry.
    """

    store: Store
    _in_force: list[Revision] | None = attrs.field(
        init=False, default=attrs.Factory(lambda self: _in_force(self.store), takes_self=True)
    )
    _history: dict[str, list[Revision]] = attrs.field(init=False, factory=dict)

    def _binding(self, name: str) -> Revision | None:
        """Return the policy that binds a name; raise if that is damaged."""
        if self._in_force is None:
            return self.store.policies.of(name)
        return next((revision for revision in self._in_force if matches(revision.scope, name)), None)

    def policy(self, name: str) -> dict[str, Any] | None:
        """Return the policy that binds a name, with its changes; None without one."""
        try:
            revision = self._binding(name)
            if revision is None:
                return None
            history = self._history.get(revision.scope)
            if history is None:
                history = self._history[revision.scope] = self.store.policies.history(revision.scope)
        except CompatkitError as error:
            return {"text": "", "error": error_line(self.store, error), "since": "", "history": []}
        events = [
            [shown_time(change.time), _text(change), line(change.by)]
            for change in history
            if not change.admitted or change.admitted.rpartition("@")[0] == name
        ]
        return {
            "text": line(str(revision.policy)),
            "error": "",
            "since": shown_time(revision.time),
            "history": events[-MAX_ROWS:],
        }

    def of(self, version: SearchResult, manifest: Manifest) -> dict[str, Any] | None:
        """Return the outcome of a version by kept results; None if no policy concerns it.

        Returns:
            ``word``: ``passes``, ``fails``, ``undecided``, or ``nothing to measure``; ``reason``; ``rows``: partner,
            its address, bound, least accuracy, accuracy, verdict.
        """
        try:
            revision = self._binding(version.name)
            if revision is None or revision.policy is None or not revision.policy.concerns(version.kind):
                return None
            return self._outcome(version, manifest)
        except CompatkitError as error:
            return {"word": "undecided", "reason": error_line(self.store, error), "rows": []}

    def _outcome(self, version: SearchResult, manifest: Manifest) -> dict[str, Any]:
        from compatkit.components.loading import PartLoader
        from compatkit.components.policy_checks import PolicyChecker

        number = Version.parse(version.version)
        requirement = self.store.policy_requirement(version.name, manifest, version=version.version)
        if not requirement.is_open:
            return {"word": "nothing to measure", "reason": line(requirement.reason), "rows": []}
        candidate = PartLoader(self.store).component(Reference(version.name, number, digest=version.digest))
        outcome = PolicyChecker(
            self.store, candidate, version=version.version, use_evidence=True, can_measure=False
        ).answer(requirement)
        rows = [
            [answer.partner, *(line(text) for text in answer.row()[2:])]
            for answer in outcome.answers[:MAX_ROWS]
        ]
        return {"word": "passes" if outcome.passed else "fails", "reason": "", "rows": rows}


def _text(change: Revision) -> str:
    if change.admitted:
        return line(f"{change.admitted} was accepted unmeasured")
    return "cleared" if change.policy is None else line(str(change.policy))


def _in_force(store: Store) -> list[Revision] | None:
    """Return the policies in force, the most specific first; None if one is damaged."""
    try:
        return store.policies.all()
    except CompatkitError:
        return None
