"""Folders of runs of the command line: recipe, settings and checkpoint."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import FormatError, UsageError
from compatkit.experiments.folders import (
    contains_runs,
    created_folder,
    default_location,
    parse_record,
    read_json,
)
from compatkit.experiments.recipes.files import loader, single
from compatkit.experiments.recipes.recipe import Recipe, Start, check
from compatkit.foundation.codec import digest, dumps
from compatkit.foundation.credentials import redacted
from compatkit.registry.disk import replace_file

NOTE, STATE = "run.json", "state.safetensors"
"""Files in the folder of a run: recipe and settings, and checkpoint."""


@attrs.frozen
class StartedRun:
    """Recipe and settings of a run at its start; all values are JSON values.

    Attributes:
        recipe: Absolute path of the recipe.
        tables: Tables of the recipe.
        settings: Trainer settings to use instead of those of the tables; None for no override.
        prefix: Prefix to use instead of that of the tables, or None.
        data_root: Folder of data sets, or None.
        registry: Registry for publishing the parts.
        command: Command line of the run.
        about: Fields of ``About`` to use instead of those of the tables.
        published: References of the published parts by key; empty before publication.
    """

    recipe: str
    tables: Mapping[str, Any]
    settings: Mapping[str, Any]
    prefix: str | None
    data_root: str | None
    registry: str
    command: Sequence[str]
    about: Mapping[str, Any] = attrs.field(factory=dict)
    published: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, recipe: str, registry: Path, data_root: str | None, **attributes: Any) -> StartedRun:
        """Return a run of a recipe file.

        Args:
            recipe: Path of the recipe file.
            registry: Folder of the registry.
            data_root: Folder of data sets, or None.
            attributes: Other attributes, by name.

        Raises:
            UsageError: The file does not exist, or is not a recipe for a single run.
        """
        file = Path(recipe)
        root = None if data_root is None else str(Path(data_root).absolute())
        return cls(str(file.absolute()), single(file), data_root=root, registry=str(registry), **attributes)

    @classmethod
    def read(cls, folder: Path) -> StartedRun:
        """Return the run of a folder.

        Raises:
            UsageError: The folder contains no run.
            FormatError: ``run.json`` is damaged.
            EnvironmentFailure: ``run.json`` cannot be read.
        """
        path = folder / NOTE
        try:
            if (value := read_json(path)) is not None:
                return parse_record(cls, value, NOTE, {"schema": 1, "kind": "run"})
        except FormatError as error:
            raise FormatError(f"{path} does not describe a run: {error}", subject=path) from error
        raise UsageError(
            f"There is no run in {str(folder)!r}. Name the folder that `compatkit train` printed, such as "
            "parts-runs/mnist_usps-1a2b3c4d.",
            subject=folder,
        )

    def write(self, folder: Path) -> None:
        """Write ``run.json`` into a folder, without loggers, whose settings may hold secrets.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        value = {"schema": 1, "kind": "run", **attrs.asdict(self, recurse=False)}
        value["tables"] = _without_loggers(self.tables)
        if isinstance(trainer := self.tables.get("trainer"), Mapping):
            value["tables"]["trainer"] = _without_loggers(trainer)
        value["settings"] = _without_loggers(self.settings)
        value["command"] = [redacted(word) for word in self.command]
        replace_file(folder / NOTE, json.dumps(value, indent=2).encode())

    def default_folder(self) -> Path:
        """Return the default folder of this run, below the current folder; equal runs have equal folders.

        The name depends on the registry, the seed and the recipe's content, but not on the prefix or on settings that
        do not change the result, such as the interval between checkpoints.

        Raises:
            UsageError: The current folder is in the registry.
        """
        from compatkit.training.settings import WITHOUT_INFLUENCE

        trainer = self.tables.get("trainer")
        overrides = {key: value for key, value in self.settings.items() if value is not None}
        settings = {**(trainer if isinstance(trainer, Mapping) else {}), **overrides}
        relevant = {key: value for key, value in settings.items() if key not in WITHOUT_INFLUENCE}
        tables = {key: value for key, value in self.tables.items() if key not in ("prefix", "loggers")}
        origin = {"recipe": self.recipe, "registry": self.registry}
        name = digest(dumps({**tables, "trainer": relevant, **origin})).removeprefix("sha256:")
        return default_location(Path(self.registry), "runs") / f"{Path(self.recipe).stem}-{name[:8]}"

    def load(self, download: bool, start: Start) -> Recipe:
        """Return the recipe with its data sets; arguments and errors as for ``Recipe.load``."""
        file = Path(self.recipe)
        recipe = check(self.tables, file, prefix=self.prefix, **self.settings)
        recipe = recipe.load(loader(file, self.data_root, download), start)
        return attrs.evolve(recipe, about=recipe.about.updated(self.about))

    @contextmanager
    def in_folder(self, folder: Path) -> Iterator[None]:
        """Create the folder of a run; remove it after an error unless it contains a checkpoint.

        Raises:
            UsageError: The folder contains other files only.
            EnvironmentFailure: The folder cannot be created or written.
        """
        new = not folder.exists()
        contains_runs(folder, NOTE, "run")
        with created_folder(folder):
            self.write(folder)
            try:
                yield
            except BaseException:
                if new and not (folder / STATE).exists():
                    (folder / NOTE).unlink(missing_ok=True)
                raise

    def command_line(self) -> str:
        """Return the command of the run, quoted for the shell."""
        return shlex.join(self.command)


def _without_loggers(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "loggers"}
