"""Repair of policies: from another copy of the registry, or not at all, for nobody else knows what was promised."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import attrs

from compatkit.errors import CompatkitError, FormatError
from compatkit.registry import disk as durable
from compatkit.registry.layout import inspect
from compatkit.registry.policylog import FOLDER, file_name, parse_file, understood
from compatkit.registry.refs import LIMIT
from compatkit.registry.repair.planning import REFER, Planned
from compatkit.registry.verify.faults import CODES, Fault

MOST = 1_000
"""Changes of one gap that are brought back."""
_MENDED = {"policy-damaged", "policy-gap", "symlink", "special-file", "folder-for-file"}


@attrs.define
class PolicyRepair:
    """Plans what mends policies."""

    planned: Planned

    def takes(self, fault: Fault) -> bool:
        """Tell whether a fault is one of a change of a policy."""
        folder, _, name = fault.path.rpartition("/")
        return folder == FOLDER and fault.code in _MENDED and parse_file(name) is not None

    def mend(self, fault: Fault) -> bool:
        """Plan what mends a fault; False if nothing does."""
        parsed = parse_file(fault.path.rpartition("/")[2])
        if parsed is None:
            return False
        if not self._is_a_copy() or not self._bring(fault, *parsed):
            self.planned.leave(fault, CODES["policy-damaged"].remedy)
        return True

    def _bring(self, fault: Fault, scope: str, first: int) -> bool:
        numbers = range(first, first + (MOST if fault.code == "policy-gap" else 1))
        done = False
        for number in numbers:
            path = f"{FOLDER}/{file_name(scope, number)}"
            data = self._there(path, scope, number)
            if data is None or (number > first and (self.planned.root / path).exists()):
                break
            source = self.planned.source.root if self.planned.source is not None else ""
            work = partial(self.planned.mender.rewrite, path, data, partial(self._is_damaged, scope, number))
            done = self.planned.act(fault, REFER, f"write {path} as it is in {source}", work, path)
        return done

    def _is_a_copy(self) -> bool:
        """Tell whether the other registry is a copy of this one: policies of others are promises of others."""
        try:
            return self.planned.source is not None and self.planned.source.id == inspect(self.planned.root).id
        except CompatkitError:
            return False

    def _there(self, path: str, scope: str, number: int) -> bytes | None:
        """Return what the other copy has, if that is sound."""
        source = self.planned.source
        try:
            found = None if source is None else durable.read(source.root / path, source.root, limit=LIMIT + 1)
            if found is not None:
                understood(found[0], scope, number)
        except CompatkitError:
            return None
        return None if found is None else found[0]

    def _is_damaged(self, scope: str, number: int, path: Path) -> bool:
        content = self.planned.content(path)
        try:
            return content is None or understood(content, scope, number) is None
        except FormatError:
            return True
