"""Commands that run networks: matrix and recombine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.shared import data_options, emit, json_option, progress, registry

if TYPE_CHECKING:
    from compatkit.data.dataset import Split
    from compatkit.workspace import Registry

POLICIES = ("batch", "reestimate", "running")


@click.command("matrix", help="Measure the EXTRACTORS with the HEADS (patterns such as 'digits/*.head').")
@click.argument("extractors")
@click.argument("heads")
@click.option("--recipe", type=click.Path(), help="Take the test sets of this recipe's tasks.")
@click.option(
    "--data", "names", multiple=True, help="Test set by name or path; else those the extractors name."
)
@click.option("--normalisation", type=click.Choice(POLICIES), default="batch", show_default=True)
@click.option("--batch-size", type=click.IntRange(2), default=256, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of the images.")
@click.option("--html", type=click.Path(), help="Write one self-contained page.")
@click.option("--png", type=click.Path(), help="Write a heat map.")
@click.option("--markdown", type=click.Path(), help="Write a Markdown table.")
@click.option("--csv", type=click.Path(), help="Write all figures as CSV.")
@data_options
@json_option
@click.pass_context
def matrix_command(
    context: click.Context,
    extractors: str,
    heads: str,
    recipe: str | None,
    names: tuple[str, ...],
    normalisation: str,
    batch_size: int,
    seed: int,
    html: str | None,
    png: str | None,
    markdown: str | None,
    csv: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Measure and report; a cell is measured on its extractor's own test set."""
    held = registry(context)
    data = _test_sets(held, extractors, recipe, names, data_root, download)
    with progress("matrix", not machine) as report:
        matrix = held.matrix(
            extractors,
            heads,
            data,
            normalisation=normalisation,
            batch_size=batch_size,
            seed=seed,
            progress=report,
        )
    for path, write in (
        (html, matrix.to_html),
        (png, matrix.to_png),
        (markdown, matrix.to_markdown),
        (csv, matrix.to_csv),
    ):
        if path:
            write(path)
    if machine:
        click.echo(matrix.to_json())
        return
    from rich.console import Console

    Console().print(matrix)
    for path in filter(None, (html, png, markdown, csv)):
        click.echo(f"wrote {path}")


@click.command("recombine", help="Put HEAD on EXTRACTOR; measured on a test set, or only built and checked.")
@click.argument("extractor")
@click.argument("head")
@click.option(
    "--data", "name", help="Test set by name or path to measure on; else the one the extractor names."
)
@click.option("--recipe", type=click.Path(), help="Take the test set of this recipe's task.")
@click.option("--no-measure", is_flag=True, help="Build and check only.")
@click.option("--normalisation", type=click.Choice(POLICIES), default="batch", show_default=True)
@data_options
@json_option
@click.pass_context
def recombine_command(
    context: click.Context,
    extractor: str,
    head: str,
    name: str | None,
    recipe: str | None,
    no_measure: bool,
    normalisation: str,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Check, build and measure one recombination; exit code 1 where it cannot be wired or is at chance."""
    held = registry(context)
    model = held.recombine(extractor, head)
    report = model.report
    if no_measure:
        emit({"check": report.to_json()}) if machine else click.echo(str(report))
        return
    data = _test_sets(held, extractor, recipe, (name,) if name else (), data_root, download)
    matrix = held.matrix(extractor, _with_own(held, extractor, head), data, normalisation=normalisation)
    pinned = held.store.resolve(head)
    cell = matrix.cell(matrix.extractors[0].reference, f"{pinned.name}@{pinned.version}")
    if machine:
        import attrs

        emit({"check": report.to_json(), "cell": attrs.asdict(cell)})
    else:
        from rich.console import Console

        click.echo(str(report))
        Console().print(matrix)
    context.exit(1 if cell.grade == "chance" else 0)


def _with_own(held: Registry, extractor: str, head: str) -> list[str]:
    """Return the head, and the head that the extractor was trained with, which is the bound."""
    wanted = held.store.resolve(extractor).digest
    own = [
        f"{name}@{version}"
        for name in held.names()
        for version in held.store.versions(name)
        if any(
            parent.relation == "trained_with" and parent.component == wanted
            for parent in held.manifest(f"{name}@{version}").parents
        )
    ]
    return [head, *own[:1]]


def _test_sets(
    held: Registry,
    extractors: str,
    recipe: str | None,
    names: tuple[str, ...],
    root: str | None,
    download: bool,
) -> list[Split]:
    from compatkit.data import load

    if recipe:
        from compatkit.recipes import read

        tasks = read(recipe, root=root, download=download).tasks
        return list({task.data.test.name: task.data.test for task in tasks}.values())
    families = list(names)
    if not families:
        for reference in held.store.select(extractors):
            data = held.store.manifest(reference).training.get("data", {})
            families.append(str(data.get("name", "")).rsplit("/", 1)[0])
    return [load(family, root=root, download=download).test for family in dict.fromkeys(families)]
