"""``compatkit recombine``: a head on another network's extractor, checked, built, measured and kept if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.images import data_sets
from compatkit.cli.keeping import Kept, check_target, keep, tell_kept
from compatkit.cli.matrix import measuring_options
from compatkit.cli.options import about, about_options, check_publishes
from compatkit.cli.output import emit, paragraph, progress, report_text, rows
from compatkit.cli.roots import registry
from compatkit.contracts.batchnorm import estimates
from compatkit.errors import DataError, IncompatibleError

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.report import Report
    from compatkit.evaluation.recombination import Recombination


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
@about_options
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
    from compatkit.components.seams import needs_fit
    from compatkit.components.workspace.images import fitting_images

    check_publishes(context, publish)
    if publish is not None:
        check_target(context, publish, "recombination")
    held = registry(context)
    left, right = held.store.resolve(extractor), held.store.resolve(head)
    report = held.check(str(left), str(right))
    _refuse(report, adapt)
    fits = needs_fit(report)
    data = None
    anew = publish is not None and estimates(conditions["bn_policy"])
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
    policy = policy if publish is None else conditions["bn_policy"]
    given = fitting_images(data) if data is not None and (fits or anew) else None
    images, fitted_on = given if anew else None, given if fits else None
    model = held.recombine(
        str(left), str(right), bn_policy=policy, images=images, adapt=adapt, data=fitted_on
    )
    if no_measure or data is None:
        _tell(model.report, None, model, machine, keep(held, publish, model, None, about(context)))
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
    _tell(after, cell, model, machine, keep(held, publish, model, cell, about(context)))
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
        from compatkit.contracts.codec import unstructure

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
