"""Results of a study as Markdown: means and spread over seeds, and the paper's figures apart from them."""

from __future__ import annotations

from collections.abc import Iterable

from compatkit.experiments.studies.results import Results, shown
from compatkit.reports.markdown import escape


def render(results: Results, figures: Iterable[str]) -> str:
    """Return the document.

    Args:
        results: What the runs gave.
        figures: Names of picture files that lie beside it.
    """
    study, count = results.found.study, len(results.seeds)
    seeds = f"{count} seeds: mean ± standard deviation over seeds" if count > 1 else "1 seed, so no spread"
    lines = [f"# Study {results.found.number}: {escape(study.title)}", "", escape(study.question), ""]
    lines += [f"Paper: {escape(study.reference)}.", ""]
    lines += [f"Size `{results.size}`; {seeds}.", "", *_grid(results), ""]
    if results.paper:
        lines += ["## What the paper reports", "", *_scale(results), "", *_paper(results), ""]
    elif results.scale:
        lines += [*_scale(results), ""]
    if results.notes:
        lines += ["## Notes", "", *(f"- {escape(note)}" for note in results.notes), ""]
    lines += [f"![{escape(study.title)}]({name})" for name in figures]
    lines += ["", "## How it was made", "", f"    {results.command}", "", *_made(results)]
    return "\n".join(lines) + "\n"


def _grid(results: Results) -> list[str]:
    """Return means by arm and measure, the longer side downwards."""
    measures, arms = results.measures, results.arms
    cells = {(arm, one.name): shown(results.known(arm, one.name)) for arm in arms for one in measures}
    titles = {one.name: escape(one.title) + _unit(one.unit) for one in measures}
    if len(measures) > len(arms):
        rows = [[titles[one.name], *(cells[arm, one.name] for arm in arms)] for one in measures]
        return _table(["", *map(escape, arms)], rows)
    rows = [[escape(arm), *(cells[arm, one.name] for one in measures)] for arm in arms]
    return _table(["arm", *titles.values()], rows)


def _scale(results: Results) -> list[str]:
    if not results.scale:
        return ["At the paper's scale."]
    return [
        f"**The scale differs**, so the figures cannot be compared, only their order: {escape(results.scale)}"
    ]


def _paper(results: Results) -> list[str]:
    titles = {one.name: one.title for one in results.found.study.measures}
    rows = [
        [
            escape(one.arm),
            escape(titles.get(one.metric, one.metric)),
            f"{one.value:g}{_unit(one.unit)}" + (f" ± {one.spread:g}" if one.spread is not None else ""),
            escape(one.source),
        ]
        for one in results.paper
    ]
    return _table(["arm", "what", "paper", "source"], rows)


def _made(results: Results) -> list[str]:
    said = results.to_json(())
    seconds = [one.seconds for one in results.records.values()]
    told = {
        "settings": ", ".join(f"{name} {value}" for name, value in results.settings.items()),
        "seconds": f"{sum(seconds):.0f} in all, {min(seconds):.1f} to {max(seconds):.1f} a run",
        "versions": "; ".join(
            ", ".join(f"{name} {number}" for name, number in one.items()) for one in said["versions"]
        ),
        "images": "; ".join(
            ", ".join(f"{name} {digest.rpartition(':')[2][:12]}" for name, digest in one.items())
            for one in said["data"]
            if one
        ),
        "machine": "; ".join(
            ", ".join(f"{name} {value}" for name, value in one.items()) for one in said["machines"]
        ),
    }
    return [f"- {name}: {escape(text)}" for name, text in told.items()]


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _unit(unit: str) -> str:
    return "" if unit == "1" else f" ({unit})" if unit.isalpha() else f" {unit}"
