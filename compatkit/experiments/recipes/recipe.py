"""A run as it was written down, before and after its data sets are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.contracts.manifest import About
from compatkit.errors import UsageError
from compatkit.experiments.recipes.values import called, made

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet
    from compatkit.plugins import Use
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer

Start = Callable[..., "Task"]


@attrs.frozen
class Frozen:
    """``[frozen]``: released parts to train against.

    Attributes:
        heads: Pattern, or patterns, of names of auxiliary heads in the registry: ``"digits/shared.*"``.
        head: Reference of a target head: ``"digits/mnist.head@^1"``.
        extractor: Reference of an extractor.
        statistics: Which statistics batch normalisation inside all that is frozen uses.
    """

    heads: str | tuple[str, ...] | None = None
    head: str | None = None
    extractor: str | None = None
    statistics: Literal["stored", "batch"] = "stored"


@attrs.frozen(eq=False)
class Recipe:
    """A run as it was written down.

    Attributes:
        prefix: Where the parts are published: ``<prefix>/<task>.extractor``.
        frozen_heads: Pattern of released auxiliary heads to train against, or None.
        frozen_statistics: ``"stored"`` or ``"batch"``.
        released_head: Reference of a released target head to stay compatible with, or None.
        released_extractor: Reference of a released extractor, or None.
        about: Title, description, tags, licence and source of all parts.
    """

    path: Path
    prefix: str
    trainer: Trainer
    tasks: tuple[Task, ...]
    regularizers: tuple[Use, ...]
    frozen_heads: str | tuple[str, ...] | None = None
    frozen_statistics: Literal["stored", "batch"] = "stored"
    released_head: str | None = None
    released_extractor: str | None = None
    about: About = attrs.field(factory=About)

    @property
    def against(self) -> dict[str, Any]:
        """Patterns and references of what does not move, as ``Registry.frozen`` takes them."""
        named = {
            "heads": self.frozen_heads,
            "head": self.released_head,
            "extractor": self.released_extractor,
        }
        return {word: one for word, one in named.items() if one}


@attrs.frozen(eq=False)
class Written:
    """A recipe all of whose values are usable; its data sets are not loaded yet.

    Attributes:
        file: Where it stands; relative paths are tried from its folder first.
        entries: The tables of the tasks.
    """

    file: Path
    prefix: str
    trainer: Trainer
    entries: tuple[Mapping[str, Any], ...]
    regularizers: tuple[Use, ...]
    frozen: Frozen | None
    about: About = attrs.field(factory=About)

    def load(self, data: Callable[[Any], DataSet], start: Start | None = None) -> Recipe:
        """Return the recipe with its data sets.

        Args:
            data: Loads what a task names as its data.
            start: ``Registry.task`` of the registry whose components tasks may start from; None where there is none.

        Raises:
            UsageError: A value does not fit its data set, or a task starts from components and there are none.
            DataError: A data set cannot be read.
            NotFound: A component is not there.
        """
        from compatkit.training.task import Task

        tasks = []
        for entry in self.entries:
            where, given = called(entry, self.file), {**entry, "data": data(entry["data"])}
            if "extractor" not in entry:
                tasks.append(made(Task, given, where))
            elif start is not None:
                tasks.append(start(given.pop("name"), given.pop("data"), **given))
            else:
                raise UsageError(
                    f"{where} starts from components, which a single run does: `compatkit train`. Leave out extractor."
                )
        held = self.frozen or Frozen()
        return Recipe(
            self.file,
            self.prefix,
            self.trainer,
            tuple(tasks),
            self.regularizers,
            held.heads,
            held.statistics,
            held.head,
            held.extractor,
            self.about,
        )
