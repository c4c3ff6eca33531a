"""Who signed a component, and whether that key is trusted here."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import attrs

from compatkit.components.catalogue.texts import line
from compatkit.errors import CompatkitError
from compatkit.registry.index.search import SearchResult
from compatkit.registry.signing import dates
from compatkit.registry.signing.checks import SignatureVerdict, check_signature
from compatkit.registry.signing.envelope import parse
from compatkit.registry.signing.keys import check_installed
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.store import Store

MAX_SIGNATURES = 50


@attrs.frozen(eq=False)
class Signers:
    """Trusted keys, and the time at which signatures are judged.

    Attributes:
        store: The registry.
        trusted: Keys that the user trusts.
        time: Time of the judgment; a signature made later is judged at its own time, so that pages in a folder
            depend on no clock.
        problem: Why signatures are not verified; empty if they are.
    """

    store: Store
    trusted: Trusted
    time: datetime
    problem: str = ""

    @classmethod
    def of(cls, store: Store, newest: str, now: datetime | None = None) -> Signers:
        """Return the keys that the user trusts.

        Args:
            store: The registry.
            newest: Time of the newest publication, ISO 8601; empty if unknown.
            now: Time at which signatures are judged; None for that of the newest publication.
        """
        try:
            time = now or datetime.fromisoformat(newest).astimezone(UTC)
        except (ValueError, OverflowError):
            time = datetime(2000, 1, 1, tzinfo=UTC)
        try:
            trusted = Trusted.of()
            if trusted.keys:
                check_installed()
        except CompatkitError as error:
            return cls(store, Trusted({}), time, f"not verified: {line(str(error))}")
        return cls(store, trusted, time, "" if trusted.keys else "not verified: no key is trusted here")

    def of_version(self, version: SearchResult) -> list[list[Any]]:
        """Return the signatures of a component: key, name, verdict, when, until, signed as, whether it counts."""
        try:
            files = self.store.signatures.of(version.digest)
        except CompatkitError as error:
            return [["", "", line(str(error).replace(str(self.store.root), "REGISTRY")), "", "", "", False]]
        rows = [self._row(data, version) for data in files[:MAX_SIGNATURES]]
        more = len(files) - len(rows)
        return [*rows, *([["", "", f"and {more:,} more", "", "", "", False]] if more else [])]

    def _row(self, data: bytes, version: SearchResult) -> list[Any]:
        verdict = self._verdict(data, str(version), version.digest)
        known = verdict.to_json()
        text = (
            "trusted"
            if verdict.valid
            else self.problem
            if self.problem
            else f"does not count: {known['code']}"
        )
        return [
            line(str(known["signer"] or "damaged")),
            line(str(known["signer_name"] or "")),
            text,
            known["signed"] or "",
            known["expires"] or "",
            line(str(known["signed_as"] or "any name")),
            verdict.valid,
        ]

    def _verdict(self, data: bytes, label: str, digest: str) -> SignatureVerdict:
        time = self.time
        with suppress(CompatkitError):  # the check says what is wrong with it
            time = max(time, parse(data)[1].signed)
        return check_signature(data, digest, self.trusted, name=label, now=time)


def key_label(author: str, trusted: Trusted) -> str:
    """Return an author; a key with its name if the user trusts it."""
    key = trusted.keys.get(author)
    return line(f"{key.name} ({author[:20]})" if key is not None and key.name else author)


def shown_time(when: str) -> str:
    """Return a time as the pages show it, to the second, UTC."""
    parsed = dates.parse_time(when.replace("+00:00", "Z"))
    return line(when) if parsed is None else f"{parsed:%Y-%m-%d %H:%M:%S}"
