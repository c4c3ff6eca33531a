"""What ``compatkit plugins`` shows: every installed plugin, its status, and what it offers."""

from __future__ import annotations

from traceback import format_exception
from typing import Any, Literal

import attrs

from compatkit.errors import PluginError
from compatkit.hooks import Training
from compatkit.plugins.builders import library_of, models_of
from compatkit.plugins.discovery import blocked, clash, points
from compatkit.plugins.implementations import implementations
from compatkit.plugins.loading import Incompatible, Loaded, load, owner_of
from compatkit.plugins.settings import Setting, plain

Status = Literal["active", "blocked", "failed", "incompatible", "clash"]


@attrs.frozen(eq=False)
class Listed:
    """A line of ``compatkit plugins``.

    Attributes:
        status: ``blocked``: by a variable of the environment; ``incompatible``: written for another
            version of the hooks; ``clash``: two distributions have the same key.
        summary: First line of its docstring.
        order: Place among the plugins of its kind, from 1, where a run states nothing else.
        models: For a builder that lists them: the names of its models.
        hooks: Hooks implemented; for a regularizer whose factory is a class, those of training too.
        message: Why it cannot be used, else empty.
        traceback: Python's, of the failure, else empty.
        notes: What is odd but no failure.
        seconds: How long the import took.
    """

    kind: str
    name: str
    status: Status
    distribution: str | None
    version: str | None
    source: str | None = None
    summary: str = ""
    order: int = 0
    models: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    message: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return plain(attrs.asdict(self))


def listing() -> list[Listed]:
    """Import every installed plugin, each on its own, and say what it is or why it cannot be used."""
    lines: list[Listed] = []
    found = points()
    for point in found:
        kind, _, name = point.name.partition(".")
        owner = owner_of(point)
        line = Listed(kind, name, "active", owner.distribution, owner.version)
        twins = [other for other in found if other.name == point.name and not blocked(other)]
        try:
            if reason := blocked(point):
                lines.append(attrs.evolve(line, status="blocked", message=f"Blocked by {reason}."))
                continue
            if len(twins) > 1:
                lines.append(attrs.evolve(line, status="clash", message=str(clash(twins))))
                continue
            lines.append(_describe(line, load(point)))
        except PluginError as error:
            status: Status = "incompatible" if isinstance(error, Incompatible) else "failed"
            trace = "".join(format_exception(error))
            lines.append(attrs.evolve(line, status=status, message=str(error), traceback=trace))
    counts: dict[str, int] = {}
    for index, line in enumerate(lines):
        counts[line.kind] = counts.get(line.kind, 0) + 1
        lines[index] = attrs.evolve(line, order=counts[line.kind])
    return lines


def _describe(line: Listed, loaded: Loaded) -> Listed:
    hooks = loaded.hooks
    if line.kind == "regularizers" and isinstance(loaded.offer.factory, type):
        hooks += implementations(loaded.offer.factory, Training, loaded.offer.owner)
    models: tuple[str, ...] = ()
    if line.kind == "builders":
        library_of(loaded.offer)  # refuses what could not be recorded
        models = models_of(loaded.offer) or ()
    return attrs.evolve(
        line,
        models=models,
        source=loaded.offer.source,
        summary=loaded.summary,
        hooks=tuple(one.hook for one in hooks),
        settings=loaded.offer.settings,
        notes=loaded.notes,
        seconds=loaded.seconds,
    )
