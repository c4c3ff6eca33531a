"""Look at an installation, its machine and its registry; nothing is changed, and nothing is sent unless asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.foundation.display import Shown
from compatkit.health import installed_plugins, libraries, machine, registries, storage
from compatkit.health.observation import Observation, State, Topic
from compatkit.health.probe import Imported, Probe
from compatkit.plugins.discovery import blocked
from compatkit.plugins.installed import installed


@attrs.frozen(repr=False)
class HealthReport(Shown):
    """Everything that was looked at.

    Attributes:
        observations: What was looked at, by topic.
    """

    observations: tuple[Observation, ...]

    def count(self, state: State) -> int:
        """Return how many observations have a state."""
        return sum(each.state == state for each in self.observations)

    @property
    def exit_code(self) -> int:
        """3 if files of a registry are damaged, 4 if there is another problem, else 0."""
        problems = [each for each in self.observations if each.state == "problem"]
        if any(each.damaged for each in problems):
            return IntegrityError.exit_code
        return EnvironmentFailure.exit_code if problems else 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "problems": self.count("problem"),
            "warnings": self.count("warning"),
            "observations": [attrs.asdict(each) for each in self.observations],
        }

    def __str__(self) -> str:
        return "\n".join(
            f"{each.state:<7}  {each.topic}: {each.subject}: {each.found}{each.remedy and f' ({each.remedy})'}"
            for each in self.observations
        )


def doctor(
    registry: str | os.PathLike[str] | None = None, *, plugins: bool = False, remotes: bool = False
) -> HealthReport:
    """Look at libraries, machine, folders, plugins, registry and remotes.

    Libraries are imported in processes of their own, because a broken one may end a process.

    Args:
        registry: Registry to look at; None for the one in force.
        plugins: Whether to import every plugin.
        remotes: Whether to ask each saved remote; otherwise nothing is sent.
    """
    light = [libraries.module_of(name) for name in libraries.required() if name not in libraries.HEAVY]
    probes = [Probe.start(libraries.HEAVY), Probe.start(light)]
    keys = [installed_plugins.key_of(point) for point in installed() if not blocked(point)] if plugins else []
    tried = Probe.start(keys, "compatkit.health.plugin_probe") if plugins else None
    here = [
        *_looked("storage", storage.storage),
        *_looked("registry", lambda: registries.registry(registry)),
        *_looked("remotes", lambda: registries.remotes(ask=remotes)),
        *_looked("terminal", machine.terminal),
    ]
    imported: dict[str, Imported] = {}
    for probe in probes:
        imported |= probe.results()
    facts = imported["torch"].facts
    offered = None if tried is None else tried.results(timeout=300)
    return HealthReport(
        (
            *_looked("python", libraries.python),
            *_looked("libraries", lambda: libraries.libraries(imported)),
            *_looked("processor", lambda: machine.processor(facts)),
            *_looked("accelerator", lambda: machine.accelerator(facts)),
            *(each for each in here if each.topic in ("storage", "terminal")),
            *_looked("plugins", lambda: installed_plugins.plugins(offered)),
            *(each for each in here if each.topic not in ("storage", "terminal")),
        )
    )


def _looked(topic: Topic, look: Callable[[], Iterable[Observation]]) -> Iterator[Observation]:
    """Yield observations; an error of the look is one itself, so that all else is still looked at."""
    try:
        yield from look()
    except Exception as error:
        found = f"could not be looked at: {type(error).__name__}: {error}"
        yield Observation(topic, topic, "problem", found, "Please report this.")
