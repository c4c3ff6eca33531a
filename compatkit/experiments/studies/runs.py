"""Run of a study: arm, seed, settings and data."""

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
    from compatkit.plugins import RegularizerConfig


@attrs.define(eq=False)
class StudyData:
    """Data sets that the runs of a study share, each read once.

    Attributes:
        study: Number of the study, for messages.
        root: Folder of data sets; None for the search path of ``compatkit.data.load``.
        recorded_digests: Digests of the images of earlier runs, by split.
        folder: Folder of those runs.
    """

    study: str
    root: str | None = None
    recorded_digests: Mapping[str, str] = attrs.field(factory=dict)
    folder: Path | None = None
    _loaded: dict[str, DataSet] = attrs.field(factory=dict)

    def load(self, name: str) -> DataSet:
        """Return a data set by name.

        Raises:
            DataError: The data set is not found, or damaged.
            UsageError: Earlier runs used other images under this name.
        """
        if name not in self._loaded:
            from compatkit.data import load

            try:
                data = load(name, root=self.root)
            except (DataError, UnknownName) as error:
                if str(error.subject) != name.rstrip("/"):  # the data set exists, but is damaged
                    raise
                text = f"Study {self.study} needs the data set {name!r}. {error} Name its folder with --data."
                raise DataError(text, subject=name) from error
            self._check(data)
            self._loaded[name] = data
        return self._loaded[name]

    def _check(self, data: DataSet) -> None:
        for split in (data.train, data.test):
            recorded = self.recorded_digests.get(split.name, split.digest)
            if recorded != split.digest:
                raise UsageError(
                    f"{self.folder} holds runs with other images of {split.name} ({_shorten(recorded)}, here "
                    f"{_shorten(split.digest)}). Name another folder (--out), or those images (--data).",
                    subject=self.folder,
                )

    def note(self, data: DataSet) -> None:
        """Add a data set that a study created or read itself.

        Raises:
            UsageError: Earlier runs used other images under this name.
        """
        self._check(data)
        self._loaded[data.name] = data

    def digests(self, names: set[str]) -> dict[str, str]:
        """Return the digests of the splits of these data sets, by the names of the splits."""
        splits = [
            split for name in sorted(names) for split in (self._loaded[name].train, self._loaded[name].test)
        ]
        return {split.name: split.digest for split in splits}


def _shorten(digest: str) -> str:
    return digest.rpartition(":")[2][:12]


@attrs.frozen
class RunPlan:
    """What all runs of a study share, as values that any process understands.

    Attributes:
        study: Number of the study.
        size: Size of the study.
        settings: Settings of all runs.
        root: Folder of data sets, or None.
        digests: Digests of the images of earlier runs, by split.
        folder: Folder of the runs.
    """

    study: str
    size: str
    settings: Mapping[str, Any]
    root: str | None
    digests: Mapping[str, str]
    folder: Path


@attrs.define(eq=False)
class Run:
    """Run of an arm with a seed.

    Attributes:
        study: Number of the study.
        arm: Arm of the study; for an arm of the user the one that it extends.
        seed: Seed of all random numbers.
        settings: Settings of the size, with the requested changes.
        added: Regularizers of an arm of the user, to be used besides those of ``arm``; empty for arms of the study.
        name: Name of the arm in results; empty for that of the study.
    """

    study: str
    arm: str
    seed: int
    settings: Mapping[str, Any]
    _data: StudyData
    _used: set[str] = attrs.field(factory=set)
    added: tuple[RegularizerConfig, ...] = ()
    name: str = ""

    def load(self, name: str) -> DataSet:
        """Return a data set by name; all runs share it.

        Raises:
            DataError: The data set is not found, or damaged.
        """
        data = self._data.load(name)
        self._used.add(name)
        return data

    def note(self, data: DataSet) -> None:
        """Record the digests of a data set that the study created or read itself, as for ``load``.

        Args:
            data: Data set with a name that no other one of the study has.

        Raises:
            UsageError: Earlier runs in the folder used other images under this name.
        """
        self._data.note(data)
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
        """Folder of data sets; None for the search path of ``compatkit.data.load``."""
        return self._data.root

    @property
    def checkpoint(self) -> Path | None:
        """Checkpoint file of the run, deleted when the run is done; None without a folder."""
        if self._data.folder is None:
            return None
        plan = hashlib.sha256(json.dumps(self._plan, sort_keys=True).encode()).hexdigest()
        return self._data.folder / f"{self.name or self.arm}-{self.seed}-{plan[:12]}.checkpoint"

    @property
    def _plan(self) -> Any:
        added = [attrs.asdict(use) for use in self.added]
        return [self.settings, added] if added else self.settings

    def digests(self) -> dict[str, str]:
        """Return the digests of the loaded splits by name."""
        return self._data.digests(self._used)
