"""Results of a study: values by arm and measure, as JSON and as Markdown."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from compatkit.errors import FormatError, UsageError
from compatkit.experiments.folders import read_json
from compatkit.experiments.spread import Spread
from compatkit.experiments.studies.arms import Arm
from compatkit.experiments.studies.finding import InstalledStudy, settings_of
from compatkit.experiments.studies.records import StudyRecord
from compatkit.experiments.studies.study import Measure, Reported
from compatkit.foundation.addresses import local
from compatkit.reports.markdown import escape
from compatkit.reports.tabular import Tabular

SCHEMA = 1
RESULTS = "results.json"


class StudyDocument(Tabular, dict[str, Any]):
    """Content of ``results.json``: JSON values by name; ``StudyDocument(json.loads(text))`` reads an existing file.

    The table has a row for each figure: a measure of a run. ``to_latex`` has a row for each arm and a column for each
    measure: mean and standard deviation over seeds.
    """

    _columns = ("study", "size", "arm", "own_arm", "seed", "metric", "value", "unit", "seconds")
    _kinds: ClassVar[Mapping[str, str]] = {"value": "float64", "seed": "Int64", "seconds": "float64"}

    def _rows(self) -> list[dict[str, Any]]:
        own = self.get("own_arms", {})
        return [
            {
                "study": self["study"],
                "size": self["size"],
                "arm": result["arm"],
                "own_arm": result["arm"] in own,
            }
            | {"seed": seed, "metric": result["metric"], "value": value, "unit": result["unit"]}
            | {"seconds": self["seconds"][result["arm"]][index]}
            for result in self["results"]
            for index, (seed, value) in enumerate(zip(self["seeds"], result["values"], strict=True))
        ]

    def _latex_rows(self) -> list[dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for result in self["results"]:
            spread = Spread.of([value for value in result["values"] if value is not None])
            unit = "" if result["unit"] == "1" else f" ({result['unit']})"
            row = rows.setdefault(result["arm"], {"arm": result["arm"]})
            row[f"{result['metric']}{unit}"] = None if spread is None else str(spread)
        return list(rows.values())


def read(folder: str | os.PathLike[str]) -> StudyDocument:
    """Return the results that a study wrote to a folder; reads ``results.json`` alone.

    Args:
        folder: Folder of a study, as ``run`` or ``compatkit study run --out`` leaves it.

    Raises:
        UsageError: The folder holds no results.
        FormatError: ``results.json`` is damaged, or of another version.
        EnvironmentFailure: It cannot be read.
    """
    path = Path(local(folder, "a folder of results")) / RESULTS
    document = read_json(path)
    if document is None:
        raise UsageError(f"{path.parent} holds no {RESULTS}; run the study first.", subject=path.parent)
    shape = {"results": list, "seeds": list, "seconds": dict, "study": str, "size": str}
    wrong = not isinstance(document, dict) or any(
        not isinstance(document.get(name), kind) for name, kind in shape.items()
    )
    if wrong or document.get("schema") != SCHEMA:
        raise FormatError(
            f"{path} is no result of a study as this version writes it (schema {SCHEMA}).", subject=path
        )
    keys = {"arm", "metric", "unit", "values"}
    count = len(document["seeds"])
    for entry in document["results"]:
        if not isinstance(entry, dict) or entry.keys() != keys or len(entry["values"]) != count:
            raise FormatError(
                f"{path}: a result needs {', '.join(sorted(keys))} with {count} values.", subject=path
            )
    return StudyDocument(document)


@attrs.frozen(kw_only=True, eq=False)
class Results:
    """Runs of some arms and seeds at one size.

    Attributes:
        installed: Study.
        size: Size of the study.
        settings: Settings of all runs.
        arms: Arms in the study's order, then those of the user.
        own_arms: Arms of the user by name.
        seeds: Seeds from 0.
        data_given: Whether the runs used a given folder of data sets.
        records: Record by arm and seed.
    """

    installed: InstalledStudy
    size: str
    settings: Mapping[str, Any]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    data_given: bool
    records: Mapping[tuple[str, int], StudyRecord]
    own_arms: Mapping[str, Arm] = attrs.field(factory=dict)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Measures with a value in at least one run."""
        return tuple(
            measure
            for measure in self.installed.study.measures
            if any(self.known(arm, measure.name) for arm in self.arms)
        )

    @property
    def scale(self) -> str:
        """Differences of size and settings from the paper's; empty if there are none."""
        text = self.installed.study.scale.get(self.size, "")
        defaults = settings_of(self.installed, self.size)
        changes = [f"{name} {value} in place of {defaults[name]}" for name, value in self.changes.items()]
        if changes:
            text += f" Changed by hand: {', '.join(changes)}."
        return text.strip()

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that differ from those of the size."""
        defaults = settings_of(self.installed, self.size)
        return {name: value for name, value in self.settings.items() if value != defaults[name]}

    @property
    def command(self) -> str:
        """Command that reproduces the results, with folders as DIR and OUT."""
        words = ["compatkit", "study", "run", self.installed.number]
        words += ["--seeds", str(len(self.seeds)), "--size", self.size]
        if self.arms != self.installed.study.arms:
            arms = [self.own_arms[arm].text if arm in self.own_arms else arm for arm in self.arms]
            words += ["--arms", ",".join(arms)]
        for name, value in self.changes.items():
            words += ["--set", f"{name}={json.dumps(value)}"]
        return shlex.join([*words, *(["--data", "DIR"] if self.data_given else []), "--out", "OUT"])

    @property
    def notes(self) -> list[str]:
        """What arms of the user are, and the distinct notes of all runs."""
        own = [
            f"{name} is not an arm of the study: it is {arm.base} with {arm.text.partition('=')[2]}"
            f"{_by(arm.versions)}."
            for name, arm in self.own_arms.items()
        ]
        return own + list(dict.fromkeys(note for record in self.records.values() for note in record.notes))

    @property
    def paper(self) -> tuple[Reported, ...]:
        """Figures that the paper reports."""
        return self.installed.study.paper

    def values(self, arm: str, measure: str) -> list[float | None]:
        """Return the values of an arm, one per seed.

        Args:
            arm: Name of the arm.
            measure: Name of the measure.
        """
        return [self.records[arm, seed].values.get(measure) for seed in self.seeds]

    def known(self, arm: str, measure: str) -> list[float]:
        """Return the values of an arm except None.

        Args:
            arm: Name of the arm.
            measure: Name of the measure.
        """
        return [value for value in self.values(arm, measure) if value is not None]

    def figure_data(self, arm: str) -> list[Mapping[str, Any]]:
        """Return the figure data of an arm's runs, one per seed."""
        return [self.records[arm, seed].figure_data for seed in self.seeds]

    def to_json(self, files: Sequence[str]) -> dict[str, Any]:
        """Return everything except figure data as JSON values."""
        runs = list(self.records.values())
        return {
            "schema": SCHEMA,
            "study": self.installed.number,
            "size": self.size,
            "title": self.installed.study.title,
            "reference": self.installed.study.reference,
            "results": [
                {
                    "arm": arm,
                    "metric": measure.name,
                    "unit": measure.unit,
                    "values": self.values(arm, measure.name),
                }
                for arm in self.arms
                for measure in self.measures
                if self.known(arm, measure.name)
            ],
            "paper": [attrs.asdict(value) for value in self.paper],
            "scale": self.scale,
            "notes": self.notes,
            "settings": dict(self.settings),
            "own_arms": {name: arm.to_json() for name, arm in self.own_arms.items()},
            "seeds": list(self.seeds),
            "seconds": {arm: [self.records[arm, seed].seconds for seed in self.seeds] for arm in self.arms},
            "versions": _distinct([record.versions for record in runs]),
            "machines": _distinct([record.machine for record in runs]),
            "data": _distinct([record.data for record in runs]),
            "command": self.command,
            "files": list(files),
        }


def _by(versions: Sequence[str]) -> str:
    known = list(dict.fromkeys(filter(None, versions)))
    return f", by {', '.join(known)}" if known else ""


def _distinct(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    distinct: list[dict[str, Any]] = []
    for value in values:
        if dict(value) not in distinct:
            distinct.append(dict(value))
    return distinct


def render(results: Results, figures: Iterable[str]) -> str:
    """Return results as Markdown: means and deviations over seeds, then the paper's figures.

    Args:
        results: Results of the runs.
        figures: Names of image files in the same folder.
    """
    study, count = results.installed.study, len(results.seeds)
    seeds = f"{count} seeds: mean ± standard deviation over seeds" if count > 1 else "1 seed, so no spread"
    lines = [f"# Study {results.installed.number}: {escape(study.title)}", "", escape(study.question), ""]
    lines += [f"Paper: {escape(study.reference)}.", ""]
    lines += [f"Size `{results.size}`; {seeds}.", "", *_grid(results), ""]
    if results.paper:
        lines += ["## What the paper reports", "", *_scale(results), "", *_paper(results), ""]
    elif results.scale:
        lines += [*_scale(results), ""]
    if results.notes:
        lines += ["## Notes", "", *(f"- {escape(note)}" for note in results.notes), ""]
    lines += [f"![{escape(study.title)}]({name})" for name in figures]
    lines += ["", "## How it was made", "", f"    {results.command}", ""]
    return "\n".join(lines) + "\n"


def _grid(results: Results) -> list[str]:
    """Return means by arm and measure, the longer side as rows."""
    measures, arms = results.measures, results.arms
    cells = {
        (arm, measure.name): str(Spread.of(results.known(arm, measure.name)) or "")
        for arm in arms
        for measure in measures
    }
    titles = {measure.name: escape(measure.title) + _unit(measure.unit) for measure in measures}
    titles_of = {arm: f"{arm} (not the study's)" if arm in results.own_arms else arm for arm in arms}
    if len(measures) > len(arms):
        rows = [[titles[measure.name], *(cells[arm, measure.name] for arm in arms)] for measure in measures]
        return _table(["", *map(escape, titles_of.values())], rows)
    rows = [[escape(titles_of[arm]), *(cells[arm, measure.name] for measure in measures)] for arm in arms]
    return _table(["arm", *titles.values()], rows)


def _scale(results: Results) -> list[str]:
    if not results.scale:
        return ["At the paper's scale."]
    return [
        f"**The scale differs**, so the figures cannot be compared, only their order: {escape(results.scale)}"
    ]


def _paper(results: Results) -> list[str]:
    titles = {measure.name: measure.title for measure in results.installed.study.measures}
    rows = [
        [
            escape(figure.arm),
            escape(titles.get(figure.metric, figure.metric)),
            f"{figure.value:g}{_unit(figure.unit)}"
            + (f" ± {figure.spread:g}" if figure.spread is not None else ""),
            escape(figure.source),
        ]
        for figure in results.paper
    ]
    return _table(["arm", "what", "paper", "source"], rows)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _unit(unit: str) -> str:
    return "" if unit == "1" else f" ({unit})" if unit.isalpha() else f" {unit}"
