"""Commands that run networks: matrix and recombine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.adaptation import FITTED
from compatkit.batchnorm import estimates
from compatkit.cli.images import data_sets, fitting_images
from compatkit.cli.keeping import Kept, check_target, keep, tell_kept
from compatkit.cli.options import (
    StatisticsType,
    data_options,
    json_option,
    registry_option,
    signature_options,
)
from compatkit.cli.output import clean, emit, paragraph, print_matrix, progress, report_text, rows
from compatkit.cli.roots import check_outputs, registry
from compatkit.errors import DataError, IncompatibleError

if TYPE_CHECKING:
    from compatkit.evaluation.cells import Cell
    from compatkit.evaluation.recombination import Recombination
    from compatkit.reports.matrix import Matrix
    from compatkit.verdict import Report

PRECISIONS = ("float32", "bfloat16")
FILLS = ("missing", "stale", "all", "none")
WRITERS = ("html", "png", "markdown", "csv")


def measuring_options(function: Any) -> Any:
    """Add what both commands take: where the images are, and how batch normalisation is treated."""
    for option in (
        json_option,
        registry_option,
        signature_options,
        data_options,
        click.option(
            "--device", default="cpu", show_default=True, help="Where to run: cpu, cuda, ... or auto."
        ),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the order of the images."
        ),
        click.option(
            "--batch-size", type=click.IntRange(2), default=256, show_default=True, help="Images in a batch."
        ),
        click.option(
            "--precision",
            type=click.Choice(PRECISIONS),
            default="float32",
            show_default=True,
            help="float32, or bfloat16 by autocast.",
        ),
        click.option(
            "--normalisation",
            type=StatisticsType(),
            default="batch",
            show_default=True,
            help="Statistics of batch normalisation: of each batch (as in the paper), estimated anew on the test "
            "images without their labels, these mixed with the stored ones as if those were of N images, or as "
            "stored.",
        ),
        click.option(
            "--recipe", type=click.Path(), metavar="FILE", help="Take the test sets of this recipe's tasks."
        ),
    ):
        function = option(function)
    return function


@click.command(
    "matrix",
    help="Report every one of EXTRACTORS with every one of HEADS (globs such as 'digits/*.head'): what was measured "
    "before under exactly these conditions is taken, what is missing is measured and kept.",
)
@click.argument("extractors")
@click.argument("heads")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write one self-contained page.")
@click.option("--png", type=click.Path(), metavar="FILE", help="Write a heat map.")
@click.option("--markdown", type=click.Path(), metavar="FILE", help="Write a Markdown table.")
@click.option("--csv", type=click.Path(), metavar="FILE", help="Write all figures as CSV.")
@click.option(
    "--data",
    "names",
    multiple=True,
    metavar="NAME",
    help="Test set by name or path, once for each; else those that the extractors were trained on.",
)
@click.option(
    "--fill",
    type=click.Choice(FILLS),
    default="missing",
    show_default=True,
    help="Measure what nothing is known of; also what is stale, because the metric, the images or the bound changed "
    "since; all anew; or nothing, which needs no images.",
)
@click.option(
    "--bridge",
    "rung",
    metavar="RUNG",
    help="Put a bridge between parts that were not trained together, fitted on training images without their labels: "
    "permutation, procrustes, ridge, ridge-procrustes, ridge3x3, stitch, or best, the one that agrees most (see "
    "`compatkit bridge`).",
)
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only components with tag:KEY=VALUE, model=GLOB, class=NAME, anchor=DIGEST, latest=yes, ... (head.model=GLOB "
    "for one side), only cells with grade=compatible,perfect, state=stale, promise=shared-head, wiring=direct, "
    "accuracy>=.9; may be repeated, and all must fit.",
)
@measuring_options
@click.pass_context
def matrix_command(
    context: click.Context,
    extractors: str,
    heads: str,
    names: tuple[str, ...],
    recipe: str | None,
    rung: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
    html: str | None,
    png: str | None,
    markdown: str | None,
    csv: str | None,
    **conditions: Any,
) -> None:
    """Report and measure; a cell is measured on its extractor's own test set."""
    from compatkit.matrices.sides import Sides
    from compatkit.matrices.where import parse

    paths = dict(zip(WRITERS, (html, png, markdown, csv), strict=True))
    check_outputs({f"--{name}": path for name, path in paths.items()})
    held = registry(context)
    data, between = None, None
    if conditions["fill"] != "none" or names or recipe:
        chosen = Sides(held.store).choose(extractors, "extractor", parse(conditions["where"]))
        lefts = [one.reference for one in chosen]
        sets = data_sets(held, lefts, recipe=recipe, names=names, root=data_root, download=download)
        data = {name: one.test for name, one in sets.items()}
        if rung is not None:
            with progress("bridges") as report:
                fitted_on = {name: fitting_images(one) for name, one in sets.items()}
                between = held.bridges_between(lefts, heads, fitted_on, rung, tests=data, progress=report)
    elif rung is not None:
        raise click.UsageError(
            "--bridge fits on images, which --fill none does not read; name them with --data."
        )
    with progress("matrix") as report:
        matrix = held.matrix(extractors, heads, data, bridges=between, progress=report, **conditions)
    for name, path in paths.items():
        if path is not None:
            getattr(matrix, f"to_{name}")(path)
    if machine:
        import json

        emit(json.loads(matrix.to_json()))
        return
    print_matrix(matrix)
    _tell_cells(matrix)
    for path in filter(None, paths.values()):
        click.echo(f"wrote {clean(path)}")


def _tell_cells(matrix: Matrix) -> None:
    """Print how many cells were taken and how many measured, and how to fill what is not known."""
    counts = matrix.settings["cells"]
    click.echo()
    told = f"{counts['taken']:,} taken from what was measured before, {counts['measured']:,} measured now"
    for state, fill in (("stale", "stale"), ("missing", "missing")):
        if counts.get(state):
            told += f"; {counts[state]:,} {state}: --fill {fill} measures {'it' if counts[state] == 1 else 'them'}"
    paragraph(f"{told}.")


@click.command(
    "recombine",
    help="Put HEAD on EXTRACTOR: check the contracts, build the network, measure it on a test set.",
)
@click.argument("extractor")
@click.argument("head")
@click.option(
    "--data",
    "name",
    metavar="NAME",
    help="Test set by name or path; else the one that EXTRACTOR was trained on.",
)
@click.option(
    "--adapt",
    is_flag=True,
    help="Put in the adapters that the check names; one with weights is fitted on training images of the data set, "
    "without their labels.",
)
@click.option("--no-measure", is_flag=True, help="Check and build only; needs no images but those to fit on.")
@click.option(
    "--publish",
    metavar="NAME",
    help="Keep the recombination under NAME, with the policy of --normalisation, unless it is measured at chance; "
    "statistics that are estimated anew are those of training images.",
)
@measuring_options
@click.pass_context
def recombine_command(
    context: click.Context,
    extractor: str,
    head: str,
    name: str | None,
    recipe: str | None,
    adapt: bool,
    no_measure: bool,
    publish: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
    **conditions: Any,
) -> None:
    """Check, build and measure; exit code 1 where it cannot be wired or measured, or is at chance."""
    if publish is not None:
        check_target(context, publish)
    held = registry(context)
    left, right = held.store.resolve(extractor), held.store.resolve(head)
    report = held.check(str(left), str(right))
    _refuse(report, adapt)
    fits = any(one.severity == "adaptable" and one.remedy.split(":")[0] in FITTED for one in report.findings)
    data = None
    anew = publish is not None and estimates(conditions["normalisation"])
    if fits or anew or not no_measure:
        where = {"recipe": recipe, "names": (name,) if name else (), "root": data_root, "download": download}
        try:
            data = data_sets(held, [str(left)], **where)[left.name]
        except DataError as error:
            if fits or anew:
                raise
            raise DataError(
                f"{error} Or build it without a figure: --no-measure.", subject=error.subject
            ) from error
    policy = "running" if no_measure else "batch"  # measured by the matrix, under the policy asked for
    policy = policy if publish is None else conditions["normalisation"]
    given = fitting_images(data) if data is not None and (fits or anew) else None
    images, fitted_on = given if anew else None, given if fits else None
    model = held.recombine(
        str(left), str(right), normalisation=policy, images=images, adapt=adapt, data=fitted_on
    )
    if no_measure or data is None:
        _tell(model.report, None, model, machine, keep(held, publish, model, None))
        return
    between = {(str(left), str(right)): model.inserted}
    with progress("recombine") as done:
        tests = {left.name: data.test}
        matrix = held.matrix(
            str(left), str(right), tests, fill="stale", adapters=between, progress=done, **conditions
        )
    cell = matrix.cell(str(left), str(right))
    # Checked again, with what was measured by now; figures with adapters are no evidence of the pair.
    after = model.report if model.inserted else held.check(str(left), str(right))
    _tell(after, cell, model, machine, keep(held, publish, model, cell))
    context.exit(1 if cell.grade == "chance" or cell.restricted is None else 0)


def _refuse(report: Report, adapt: bool) -> None:
    """Refuse what cannot be wired, or only with adapters that were not asked for.

    Raises:
        IncompatibleError: Carries the report.
    """
    if report.wiring == "direct" or (report.wiring == "needs-adapter" and adapt):
        return
    text = str(report)
    if report.wiring == "needs-adapter":
        text += f"\nTo put the adapters in: compatkit recombine {report.extractor} {report.head} --adapt."
    raise IncompatibleError(text, subject=report)


def _tell(report: Report, cell: Cell | None, model: Recombination, machine: bool, kept: Kept | None) -> None:
    """Print what was checked, what stands between and, unless only that was asked for, what was measured."""
    if machine:
        from compatkit.registry.structuring import unstructure

        measured = None if cell is None else attrs.asdict(cell)
        adapters = unstructure(model.contract.adapters)
        found = {"check": report.to_json(), "adapters": adapters, "cell": measured}
        emit(found | ({} if kept is None else kept.to_json()))
        return
    click.echo(report_text(report))
    if model.inserted:
        click.echo()
        rows({f"adapter {place}": str(one) for place, one in enumerate(model.inserted, 1)})
    if cell is None:
        click.echo("\nbuilt; not measured")
        tell_kept(kept)
        return
    from compatkit.reports.wording import evidence, settings_line, verdict

    said = verdict(cell)
    click.echo()
    paragraph(f"{said.mark} {said.word}: {cell.reason or said.meaning}")
    rows(dict(evidence(cell)) | {"Measured with": settings_line(cell.settings)})
    tell_kept(kept)
