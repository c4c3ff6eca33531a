"""Everything that a catalogue shows of one name: its versions with their contracts, relatives, results and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import attrs

from compatkit.components.catalogue.contract import classes_of, contract_of
from compatkit.components.catalogue.fits import evidence
from compatkit.components.catalogue.lineage import graph
from compatkit.components.catalogue.policies import Outcomes
from compatkit.components.catalogue.signers import Signers, key_label, shown_time
from compatkit.components.catalogue.snapshot import Snapshot
from compatkit.components.catalogue.texts import error_line, line, lines, rows_of, tags_of
from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError
from compatkit.registry.history import HistoryEntry, log
from compatkit.registry.index.search import SearchResult
from compatkit.registry.maintenance.survey import NameFiles, Survey
from compatkit.registry.names import Version
from compatkit.registry.version_bumps import published_change

VERSIONS = 20
"""Number of versions whose details are in one document."""
MAX_RELATIVES, MAX_CHANGES, MAX_HISTORY = 100, 200, 500


@attrs.frozen(eq=False)
class Details:
    """Details of the names of a registry.

    Attributes:
        snapshot: The registry.
        signers: Keys that are trusted here.
        outcomes: Outcomes of policies.
        files: Files of each name, from a survey of all; empty lists them name by name.
    """

    snapshot: Snapshot
    signers: Signers
    outcomes: Outcomes
    files: Mapping[str, NameFiles] = attrs.field(factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime | None = None) -> Details:
        """Return the details of a registry.

        Args:
            snapshot: The registry.
            now: Time at which signatures are judged; None for that of the newest publication.
        """
        signers = Signers.of(snapshot.store, snapshot.newest, now)
        return cls(snapshot, signers, Outcomes(snapshot.store))

    @classmethod
    def of_all(cls, snapshot: Snapshot) -> Details:
        """Return the details of a registry of which every name is wanted."""
        survey = Survey(snapshot.store.root)
        survey.scan("refs")
        return attrs.evolve(cls.of(snapshot), files=survey.names)

    def chunks(self, name: str) -> int:
        """Return the number of documents of a name."""
        return -(-len(self.snapshot.versions[name]) // VERSIONS)

    def document(self, name: str, chunk: int = 0) -> dict[str, Any]:
        """Return a document of a name, as JSON values.

        Args:
            name: Name of a component.
            chunk: 0 for the newest ``VERSIONS`` versions, with all about the name itself; 1 for the next, ...
        """
        every = self.snapshot.versions[name]
        start = max(0, len(every) - (chunk + 1) * VERSIONS)
        part = every[start : len(every) - chunk * VERSIONS]
        classes: dict[tuple[str, ...], int] = {}
        details = [
            self._version(version, every[start + index - 1] if start + index else None, classes)
            for index, version in enumerate(part)
        ]
        shared = {"details": details[::-1], "classes": [*map(list, classes)]}
        return shared if chunk else {**self._name(name, every), **shared}

    def _name(self, name: str, every: Sequence[SearchResult]) -> dict[str, Any]:
        store = self.snapshot.store
        try:
            history = log(store, name, self.files.get(name))
        except CompatkitError as error:
            history = [HistoryEntry("", "published", "", error_line(store, error), damaged=True)]
        published = {entry.version: entry for entry in history if entry.what == "published"}
        reasons = {entry.version: entry for entry in reversed(history) if entry.what == "withdrawn"}
        aliases: dict[str, str] = {}
        with suppress(CompatkitError):  # the history names the damaged file
            if name not in self.files or self.files[name].aliases:
                aliases = store.aliases(name)
        versions = []
        for version in reversed(every):
            entry, reason = published.get(version.version), reasons.get(version.version)
            versions.append(
                [
                    version.version,
                    "" if entry is None else shown_time(entry.when),
                    "" if entry is None else self._author(entry),
                    "" if entry is None or entry.step is None else entry.step,
                    "" if entry is None else error_line(store, entry.detail),
                    version.withdrawn,
                    line(reason.detail) if version.withdrawn and reason is not None else "",
                ]
            )
        return {
            "name": name,
            "shown": self.snapshot.shown(name).version,
            "aliases": sorted(aliases.items()),
            "versions": versions,
            "policy": self.outcomes.policy(name),
            "history": [self._event(entry) for entry in history[:MAX_HISTORY]],
            "more_history": max(0, len(history) - MAX_HISTORY),
        }

    def _author(self, entry: HistoryEntry) -> str:
        return key_label(entry.by, self.signers.trusted) if entry.by else ""

    def _event(self, entry: HistoryEntry) -> list[Any]:
        detail = error_line(self.snapshot.store, entry.detail)
        texts = (entry.what, entry.version, detail)
        return [shown_time(entry.when), *texts, self._author(entry), line(entry.commit), entry.damaged]

    def _version(
        self, version: SearchResult, before: SearchResult | None, classes: dict[tuple[str, ...], int]
    ) -> dict[str, Any]:
        store = self.snapshot.store
        first = {"version": version.version, "digest": version.digest, "kind": version.kind.replace("_", " ")}
        try:
            manifest = store.manifest(version.digest)
        except CompatkitError as error:
            return {**first, "error": error_line(store, error)}
        record = self.snapshot.readings.published(version)
        names = tuple(classes_of(manifest))
        return {
            **first,
            "function": self.snapshot.readings.facts(version.digest).function,
            "model": line(version.model),
            "cut": line(version.cut),
            "about": _about(manifest),
            "description": lines(manifest.about.description),
            "tags": tags_of(manifest.about.tags),
            "commit": "" if record is None else line(record.commit),
            "contract": contract_of(self.snapshot, version, manifest),
            "classes": classes.setdefault(names, len(classes)) if names else -1,
            "parents": [self._relative(*parent) for parent in version.parents[:MAX_RELATIVES]],
            "children": self._children(version),
            "names": [str(place) for place in self.snapshot.places[version.digest] if place != version],
            "graph": graph(self.snapshot, version),
            "evidence": evidence(self.snapshot, version),
            "outcome": self.outcomes.of(version, manifest),
            "signatures": self.signers.of_version(version),
            "changes": [] if before is None else self._changes(before, version),
            "before": "" if before is None else before.version,
            "commands": _commands(version),
        }

    def _relative(self, relation: str, digest: str) -> list[str]:
        place = self.snapshot.place(digest)
        return [relation.replace("_", " "), digest, "" if place is None else str(place)]

    def _children(self, version: SearchResult) -> dict[str, Any]:
        every = self.snapshot.children.get(version.digest, ())
        rows = [[relation.replace("_", " "), str(child)] for relation, child in every[:MAX_RELATIVES]]
        return {"rows": rows, "more": len(every) - len(rows)}

    def _changes(self, before: SearchResult, version: SearchResult) -> list[list[str]]:
        """Return level, step, reason and values of each change since the version before."""
        store = self.snapshot.store
        try:
            both = [(Version.parse(one.version), store.manifest(one.digest)) for one in (before, version)]
            change = published_change(*both, admitted=str(version) in store.policies.admitted(version.name))
        except CompatkitError as error:
            return [["", "", error_line(store, error), ""]]
        rows = [
            [level, bump, line(reason), line(f"{path}: {values}" if path else values)]
            for level, reasons in change.by_level().items()
            for (bump, reason), differences in reasons.items()
            for path, values in differences
        ]
        return rows[:MAX_CHANGES]


def _about(manifest: Manifest) -> list[tuple[str, str]]:
    about = manifest.about
    return rows_of({"title": about.title, "license": about.license, "source": about.source})


def _commands(version: SearchResult) -> list[tuple[str, str]]:
    """Return commands to copy, with what they do; names and versions need no quotes."""
    reference = str(version)
    file = f"{version.name.rpartition('/')[2]}.safetensors"
    return [
        ("load in Python", f'registry.load("{reference}")'),
        ("show", f"compatkit show {reference}"),
        ("export to one file", f"compatkit export {reference} {file}"),
    ]
