"""One run from the study's point of view: arm, seed, settings and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import DataError, UnknownName, UsageError

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet


@attrs.define(eq=False)
class Shelf:
    """Data sets shared by runs, each read once.

    Attributes:
        study: Number of the study, for messages.
        root: Folder of data sets; None for the search path of ``compatkit.data.load``.
        seen: Digests of the images of earlier runs, by split.
        folder: Folder of those runs.
    """

    study: str
    root: str | None = None
    seen: Mapping[str, str] = attrs.field(factory=dict)
    folder: Path | None = None
    _read: dict[str, DataSet] = attrs.field(factory=dict)

    def load(self, name: str) -> DataSet:
        """Return a data set by name.

        Raises:
            DataError: The data set is not found, or damaged.
            UsageError: Earlier runs used other images under this name.
        """
        if name not in self._read:
            from compatkit.data import load

            try:
                data = load(name, root=self.root)
            except (DataError, UnknownName) as error:
                plain = name.rstrip("/")
                if str(error.subject) != plain:  # found but damaged
                    raise
                text = f"Study {self.study} needs the data set {name!r}. {error} Name its folder with --data."
                raise DataError(text, subject=name) from error
            self._check(data)
            self._read[name] = data
        return self._read[name]

    def _check(self, data: DataSet) -> None:
        for split in (data.train, data.test):
            was = self.seen.get(split.name, split.digest)
            if was != split.digest:
                raise UsageError(
                    f"{self.folder} holds runs with other images of {split.name} ({_brief(was)}, here "
                    f"{_brief(split.digest)}). Name another folder (--out), or those images (--data).",
                    subject=self.folder,
                )

    def note(self, data: DataSet) -> None:
        """Note a data set that a study drew itself.

        Raises:
            UsageError: Earlier runs used other images under this name.
        """
        self._check(data)
        self._read[data.name] = data

    def digests(self, names: set[str]) -> dict[str, str]:
        """Return the digests of the splits of these data sets, by the splits' names."""
        splits = [
            split for name in sorted(names) for split in (self._read[name].train, self._read[name].test)
        ]
        return {split.name: split.digest for split in splits}


def _brief(digest: str) -> str:
    return digest.rpartition(":")[2][:12]


@attrs.define(eq=False)
class Run:
    """One run: an arm at a seed.

    Attributes:
        study: Number of the study.
        arm: One of the study's arms.
        seed: Seed of everything random.
        settings: Settings of the size, with the requested changes.
    """

    study: str
    arm: str
    seed: int
    settings: Mapping[str, Any]
    _shelf: Shelf
    _used: set[str] = attrs.field(factory=set)

    def load(self, name: str) -> DataSet:
        """Return a data set by name, read once for all runs.

        Raises:
            DataError: The data set is not found, or damaged.
        """
        data = self._shelf.load(name)
        self._used.add(name)
        return data

    def note(self, data: DataSet) -> None:
        """Record the digests of a data set that the study drew or read itself, as those of ``load`` are.

        Args:
            data: No other one of the study has its name.

        Raises:
            UsageError: Earlier runs in the folder used other images under this name.
        """
        self._shelf.note(data)
        self._used.add(data.name)

    def find(self, name: str) -> DataSet | None:
        """Return an optional data set, or None if it is not found.

        Raises:
            DataError: The data set is damaged.
        """
        try:
            return self.load(name)
        except DataError as error:
            if error.subject != name:
                raise
            return None

    @property
    def root(self) -> str | None:
        """Folder of data sets that was named; None for the search path of ``compatkit.data.load``."""
        return self._shelf.root

    @property
    def checkpoint(self) -> Path | None:
        """Checkpoint file of a long run, from which it can be resumed; deleted when the run is done."""
        if self._shelf.folder is None:
            return None
        plan = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()
        return self._shelf.folder / f"{self.arm}-{self.seed}-{plan[:12]}.checkpoint"

    def digests(self) -> dict[str, str]:
        """Return the digests of the loaded splits by name."""
        return self._shelf.digests(self._used)
