"""Commands that run networks: matrix and recombine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.adaptation import FITTED
from compatkit.cli.images import data_sets, fitting_images, test_images
from compatkit.cli.options import data_options, json_option, registry_option, signature_options
from compatkit.cli.output import clean, emit, paragraph, print_matrix, progress, report_text, rows
from compatkit.cli.roots import check_outputs, registry
from compatkit.errors import IncompatibleError, IntegrityError

if TYPE_CHECKING:
    from compatkit.evaluation.cells import Cell
    from compatkit.evaluation.recombination import Recombination
    from compatkit.registry.names import Reference
    from compatkit.verdict import Report
    from compatkit.workspace import Registry

POLICIES = ("batch", "reestimate", "running")
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
            "--normalisation",
            type=click.Choice(POLICIES),
            default="batch",
            show_default=True,
            help="Statistics of batch normalisation: of each batch (as in the paper), estimated anew on the test "
            "images without their labels, or as stored.",
        ),
        click.option(
            "--recipe", type=click.Path(), metavar="FILE", help="Take the test sets of this recipe's tasks."
        ),
    ):
        function = option(function)
    return function


@click.command(
    "matrix", help="Measure every one of EXTRACTORS with every one of HEADS (globs such as 'digits/*.head')."
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
@measuring_options
@click.pass_context
def matrix_command(
    context: click.Context,
    extractors: str,
    heads: str,
    names: tuple[str, ...],
    recipe: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
    html: str | None,
    png: str | None,
    markdown: str | None,
    csv: str | None,
    **conditions: Any,
) -> None:
    """Measure and report; a cell is measured on its extractor's own test set."""
    paths = dict(zip(WRITERS, (html, png, markdown, csv), strict=True))
    check_outputs({f"--{name}": path for name, path in paths.items()})
    conditions["device"] = _device(conditions["device"])
    held = registry(context)
    lefts = list(map(str, held.select(extractors, "extractor")))
    rights = list(map(str, held.select(heads, "head")))
    data = test_images(held, lefts, recipe=recipe, names=names, root=data_root, download=download)
    with progress("matrix") as report:
        matrix = held.matrix(lefts, rights, data, progress=report, **conditions)
    for name, path in paths.items():
        if path is not None:
            getattr(matrix, f"to_{name}")(path)
    if machine:
        import json

        emit(json.loads(matrix.to_json()))
        return
    print_matrix(matrix)
    for path in filter(None, paths.values()):
        click.echo(f"wrote {clean(path)}")


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
    data_root: str | None,
    download: bool,
    machine: bool,
    **conditions: Any,
) -> None:
    """Check, build and measure; exit code 1 where it cannot be wired or measured, or is at chance."""
    held = registry(context)
    left, right = held.store.resolve(extractor), held.store.resolve(head)
    report = held.check(str(left), str(right))
    _refuse(report, adapt)
    fits = any(one.severity == "adaptable" and one.remedy.split(":")[0] in FITTED for one in report.findings)
    conditions["device"] = _device(conditions["device"])
    data = None
    if fits or not no_measure:
        where = {"recipe": recipe, "names": (name,) if name else (), "root": data_root, "download": download}
        data = data_sets(held, [str(left)], **where)[left.name]
    policy = "running" if no_measure else "batch"  # measured by the matrix, under the policy asked for
    images = fitting_images(data) if data is not None and fits else None
    model = held.recombine(str(left), str(right), normalisation=policy, adapt=adapt, data=images)
    if no_measure or data is None:
        _tell(model.report, None, model, machine)
        return
    own = _with_own(held, left, right)
    between = {(str(left), str(right)): model.inserted}
    with progress("recombine") as done:
        tests = {left.name: data.test}
        matrix = held.matrix(str(left), own, tests, adapters=between, progress=done, **conditions)
    cell = matrix.cell(str(left), str(right))
    # Checked again, with what was measured by now; figures with adapters are no evidence of the pair.
    after = model.report if model.inserted else held.check(str(left), str(right))
    _tell(after, cell, model, machine)
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


def _device(name: str) -> str:
    """Return the device to run on, once a tensor could be made there."""
    from compatkit.training.precision import Precision

    return Precision.choose(name, "float32", None).device


def _tell(report: Report, cell: Cell | None, model: Recombination, machine: bool) -> None:
    """Print what was checked, what stands between and, unless only that was asked for, what was measured."""
    if machine:
        from compatkit.registry.structuring import unstructure

        measured = None if cell is None else attrs.asdict(cell)
        adapters = unstructure(model.contract.adapters)
        emit({"check": report.to_json(), "adapters": adapters, "cell": measured})
        return
    click.echo(report_text(report))
    if model.inserted:
        click.echo()
        rows({f"adapter {place}": str(one) for place, one in enumerate(model.inserted, 1)})
    if cell is None:
        click.echo("\nbuilt; not measured")
        return
    from compatkit.reports.wording import evidence, settings_line, verdict

    said = verdict(cell)
    click.echo()
    paragraph(f"{said.mark} {said.word}: {cell.reason or said.meaning}")
    rows(dict(evidence(cell)) | {"Measured with": settings_line(cell.settings)})


def _with_own(held: Registry, extractor: Reference, head: Reference) -> list[str]:
    """Return the head, and the head that the extractor was trained with, whose accuracy is the bound.

    It is looked for beside the extractor first (``digits/mnist.extractor``, ``digits/mnist.head``), so that a
    large registry is not read through, and a damaged component elsewhere does no harm.
    """
    beside = f"{extractor.name.removesuffix('.extractor')}.head"
    names = sorted(held.names(), key=lambda name: (name != beside, name))
    for name in names:
        for version in reversed(held.store.versions(name)):
            reference = f"{name}@{version}"
            try:
                parents = held.manifest(reference).parents
            except IntegrityError:
                continue
            if any(one.relation == "trained_with" and one.component == extractor.digest for one in parents):
                return [str(head), reference]
    return [str(head)]
