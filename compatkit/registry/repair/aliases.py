"""Repair of aliases: moves that are damaged or gone are told by their neighbours, and the pointer by its log."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import attrs

from compatkit.contracts.codec import dumps
from compatkit.registry.aliases import Move
from compatkit.registry.refs import now
from compatkit.registry.repair.planning import REFER, Planned
from compatkit.registry.verify.aliaslogs import read_move, read_pointer
from compatkit.registry.verify.faults import Fault

MOST = 10_000
"""Moves that are written anew; a log with larger gaps was never one."""
_ALIAS = re.compile(r"refs/(.+)/@(?:aliases|log)/([^/]+)(?:/[0-9]+)?")
_MENDED = {
    "alias-damaged",
    "alias-behind",
    "alias-log-damaged",
    "alias-log-gap",
    "symlink",
    "special-file",
    "folder-for-file",
}


@attrs.define
class AliasRepair:
    """Plans what mends aliases and their logs."""

    planned: Planned
    _done: dict[tuple[str, str], bool] = attrs.field(factory=dict)

    def takes(self, fault: Fault) -> bool:
        """Tell whether a fault is one of an alias that its log may mend."""
        return _ALIAS.fullmatch(fault.path) is not None and fault.code in _MENDED

    def mend(self, fault: Fault) -> bool:
        """Plan what mends a fault; False if nothing does."""
        match = _ALIAS.fullmatch(fault.path)
        if match is None:
            return False
        key = match[1], match[2]
        if key not in self._done:
            self._done[key] = _Log(self.planned, fault, *key).mend()
        return self._done[key]


@attrs.define
class _Log:
    """One alias with its log, as it can still be read."""

    planned: Planned
    fault: Fault
    name: str
    alias: str
    moves: dict[int, Move] = attrs.field(factory=dict)
    numbers: list[int] = attrs.field(factory=list)
    pointer: tuple[str, int] | None = None

    def __attrs_post_init__(self) -> None:
        folder = self.planned.root / self._folder
        if folder.is_dir() and not folder.is_symlink():
            found = [int(one) for one in os.listdir(folder) if re.fullmatch("[1-9][0-9]{0,17}", one)]
            self.numbers = sorted(found)
        for number in self.numbers:
            move = read_move(self.planned.content(f"{self._folder}/{number}") or b"", number)
            if move is not None:
                self.moves[number] = move
        self.pointer = read_pointer(self.planned.content(self._place) or b"")

    @property
    def _folder(self) -> str:
        return f"refs/{self.name}/@log/{self.alias}"

    @property
    def _place(self) -> str:
        return f"refs/{self.name}/@aliases/{self.alias}"

    def mend(self) -> bool:
        """Plan the moves that are missing or damaged, then the pointer."""
        last = max([*self.numbers, self.pointer[1] if self.pointer else 0], default=0)
        if last - len(self.moves) > MOST:
            self.planned.leave(
                self.fault,
                f"{last - len(self.moves):,} moves are gone; set the alias again: `compatkit alias`",
            )
            return True
        reached, version = 0, None
        for number in range(1, last + 1):
            after, known = self._after(number)
            if not known:
                self._drop(number)
                continue
            if number not in self.moves:
                self._write(number, version, after)
            reached, version = number, after
        self._point(reached, version)
        return True

    def _after(self, number: int) -> tuple[str | None, bool]:
        """Return where the alias pointed after a move, and whether anything tells."""
        if number in self.moves:
            return self.moves[number].after, True
        later = next((self.moves[one] for one in sorted(self.moves) if one > number), None)
        if later is not None:
            return later.before, True
        if self.pointer is not None and self.pointer[1] >= number:
            return self.pointer[0], True
        return None, False

    def _write(self, number: int, before: str | None, after: str | None) -> None:
        path = f"{self._folder}/{number}"
        later = next((self.moves[one].time for one in sorted(self.moves) if one > number), now())
        data = dumps({"from": before, "rebuilt": True, "time": later, "to": after})
        told = f"{path}: from {before or 'nothing'} to {after or 'nothing'}, as its neighbours tell"
        if number in self.numbers:
            work = partial(self.planned.mender.rewrite, path, data, self._is_no_move)
            self.planned.act(
                self.fault, REFER, f"write {told}; a copy of what is there goes to quarantine/", work, path
            )
        else:
            work = partial(self.planned.mender.create, path, data)
            self.planned.act(self.fault, REFER, f"write {told}", work, path)

    def _drop(self, number: int) -> None:
        path = f"{self._folder}/{number}"
        work = partial(self.planned.mender.set_aside, path, self._is_no_move)
        words = f"move {path} to quarantine/: nothing tells where it pointed, the move before it counts"
        self.planned.act(self.fault, REFER, words, work, path)

    def _point(self, number: int, version: str | None) -> None:
        there = os.path.lexists(self.planned.root / self._place)
        if self.pointer == (version, number) or (not there and version is None):
            return
        if number == 0 and self.pointer is not None:
            return  # one without a log, written by hand: it is all there is
        mender = self.planned.mender
        old = self.planned.content(self._place)
        unchanged = lambda path: self.planned.content(path) == old  # noqa: E731 - read better beside its use
        if version is None:
            told = "the alias was removed" if number else "no log tells where it pointed; set the alias again"
            work = partial(mender.set_aside, self._place, unchanged)
            self.planned.act(
                self.fault, REFER, f"move {self._place} to quarantine/: {told}", work, self._place
            )
        else:
            data = f"{version} {number}\n".encode()
            work = partial(mender.rewrite, self._place, data, unchanged)
            words = f"write {self._place}: {version}, as move {number} of its log says"
            self.planned.act(self.fault, REFER, words, work, self._place)

    def _is_no_move(self, path: Path) -> bool:
        return read_move(self.planned.content(path) or b"", 0) is None
