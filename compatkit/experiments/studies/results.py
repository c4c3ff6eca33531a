"""What all runs of a study gave: values by arm and measure, and the document that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import attrs

from compatkit.experiments.studies.finding import Found
from compatkit.experiments.studies.records import Record
from compatkit.experiments.studies.study import Measure, Reported

SCHEMA = 1


@attrs.frozen(kw_only=True, eq=False)
class Results:
    """The runs of some arms and seeds at one size.

    Attributes:
        found: The study.
        arms: In the study's order.
        seeds: From 0.
        command: That makes the same again.
        records: One for each arm and seed.
    """

    found: Found
    size: str
    settings: Mapping[str, Any]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str
    records: Mapping[tuple[str, int], Record]

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that at least one run has a value of."""
        have = {
            name for one in self.records.values() for name, value in one.values.items() if value is not None
        }
        return tuple(one for one in self.found.study.measures if one.name in have)

    @property
    def scale(self) -> str:
        """How the size, and what was changed in it, differ from the paper's; empty where nothing does."""
        study = self.found.study
        said = study.scale.get(self.size, "")
        own = study.sizes[self.size]
        changed = {k: v for k, v in self.settings.items() if v != own[k] and v != _listed(own[k])}
        if changed:
            said += (
                " Changed by hand: " + ", ".join(f"{name} {value}" for name, value in changed.items()) + "."
            )
        return said.strip()

    @property
    def notes(self) -> list[str]:
        """What runs have to say, each once."""
        return list(dict.fromkeys(note for one in self.records.values() for note in one.notes))

    @property
    def paper(self) -> tuple[Reported, ...]:
        """What the paper reports."""
        return self.found.study.paper

    def values(self, arm: str, measure: str) -> list[float | None]:
        """Return the values of an arm, one a seed."""
        return [self.records[arm, seed].values.get(measure) for seed in self.seeds]

    def known(self, arm: str, measure: str) -> list[float]:
        """Return the values of an arm that there are."""
        return [one for one in self.values(arm, measure) if one is not None]

    def kept(self, arm: str) -> list[Mapping[str, Any]]:
        """Return what the runs of an arm keep for figures, one a seed."""
        return [self.records[arm, seed].kept for seed in self.seeds]

    def to_json(self, files: Sequence[str]) -> dict[str, Any]:
        """Return everything but what is kept for figures, as JSON values."""
        runs = list(self.records.values())
        return {
            "schema": SCHEMA,
            "study": self.found.number,
            "size": self.size,
            "title": self.found.study.title,
            "reference": self.found.study.reference,
            "results": [
                {"arm": arm, "metric": one.name, "unit": one.unit, "values": self.values(arm, one.name)}
                for arm in self.arms
                for one in self.measures
                if self.known(arm, one.name)
            ],
            "paper": [attrs.asdict(one) for one in self.paper],
            "scale": self.scale,
            "notes": self.notes,
            "settings": dict(self.settings),
            "seeds": list(self.seeds),
            "seconds": {arm: [self.records[arm, seed].seconds for seed in self.seeds] for arm in self.arms},
            "versions": _distinct([one.versions for one in runs]),
            "machines": _distinct([one.machine for one in runs]),
            "data": _distinct([one.data for one in runs]),
            "command": self.command,
            "files": list(files),
        }


def spread(values: Sequence[float]) -> tuple[float, float] | None:
    """Return mean and standard deviation over seeds (0 of one); None of none."""
    if not values:
        return None
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def shown(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text, in as many digits as the size of the mean calls for."""
    both = spread(values)
    if both is None:
        return ""
    digits = 3 if abs(both[0]) < 10 else 1
    told = f"{both[0]:.{digits}f}"
    return f"{told} ± {both[1]:.{digits}f}" if len(values) > 1 else told


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _distinct(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in values:
        if dict(one) not in found:
            found.append(dict(one))
    return found
