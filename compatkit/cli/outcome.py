"""How commands show what a policy says of a candidate, and find the images that decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.output import clean, columns, paragraph
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.components.outcomes import Outcome
    from compatkit.components.promises import Given, Progress
    from compatkit.data.dataset import DataSet
    from compatkit.registry.copy.admission import Deciding


def show_outcome(outcome: Outcome, *, verdict: bool = True) -> None:
    """Print what a policy says: the verdict, what was asked, and a line for each partner."""
    question = outcome.question
    if verdict:
        mark = click.style("passes", fg="green") if outcome.passed else click.style("fails", fg="red")
        said = clean(outcome.verdict).removeprefix("passes").removeprefix("fails")
        click.echo(
            f"{click.style(question.name, bold=True)}: {mark if outcome.answers else ''}{said}".rstrip()
        )
    if not outcome.answers:
        return
    paragraph(f"policy {question.policy}")
    columns(outcome.rows(), right=range(2, 6))


def show_outcomes(outcomes: Mapping[str, Outcome]) -> None:
    """Print what policies say of the parts of a fit."""
    for outcome in outcomes.values():
        show_outcome(outcome)


def to_json(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return JSON values."""
    return {key: outcome.to_json() for key, outcome in outcomes.items()}


def found_in(root: str | None, download: bool) -> Callable[[str], DataSet]:
    """Return what loads the data set of a split's name from the folders that the command line names."""

    def find(name: str) -> DataSet:
        from compatkit.data import load
        from compatkit.plugins.discovery import providers

        family = name.removesuffix("/test").removesuffix("/train")
        return load(family, root=root, download=download, providers=providers())

    return find


def images_at_hand(names: tuple[str, ...], recipe: str | None, root: str | None, download: bool) -> Given:
    """Return the data sets that a command line names, and what finds others by name."""
    find = found_in(root, download)
    given: list[Any] = [find(name) for name in names]
    if recipe is not None:
        from compatkit.experiments.recipes import read

        given += [task.data for task in read(recipe, root=root, download=download).tasks]
    return (*given, find)


def deciding_on(chosen: Mapping[str, Any], report: Progress) -> Deciding:
    """Return what decides on versions that come in, as the command line says.

    Args:
        chosen: What ``admission_options`` made.
        report: Told what is measured.

    Raises:
        UsageError: Images are named, and nothing is to be measured.
    """
    from compatkit.components.admitting import deciding

    if chosen["names"] and not chosen["measure"]:
        raise UsageError("--data names images to measure on; add --measure.")
    images = images_at_hand(chosen["names"], None, chosen["data_root"], chosen["download"])
    return deciding(measure=chosen["measure"], data=images, progress=report)
