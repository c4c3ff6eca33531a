"""``compatkit recombine``: put a head on another network's extractor, measure and optionally publish the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.check import VerboseOptions
from compatkit.cli.images import TestSetOptions
from compatkit.cli.matrix import ConditionOptions
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import emit, next_step, paragraph, progress, report_text, rows, warn
from compatkit.cli.releases import AboutOptions
from compatkit.cli.roots import SignatureOptions, check_target, open_registry
from compatkit.cli.statistics import ALONE, normalizes, policy_for_single_images, states_policy
from compatkit.contracts.batchnorm import DEFAULT, estimates
from compatkit.errors import DataError, IncompatibleError
from compatkit.foundation.codec import unstructure

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Cell, Figure
    from compatkit.contracts.report import Report
    from compatkit.data.split import Split
    from compatkit.evaluation.recombination import Recombination

BRIEF = ("Accuracy, common classes", "Chance", "Bound", "Recovered")
"""Figures printed without --verbose."""


class RecombineOptions(VerboseOptions, AboutOptions, ConditionOptions, TestSetOptions, SignatureOptions):
    """Arguments and options of ``recombine``."""

    extractor: str = argument()
    head: str = argument()
    insert_adapters: bool = option(
        "Insert the adapters that the check names, fitted on unlabeled training images."
    )
    no_measure: bool = option("Only check and build; no test images are needed.")
    publish: str | None = option(
        "Publish the network as NAME, unless it is at chance. Default of --bn-policy is then: reestimate (on training "
        "images), or batch with --no-measure."
    )


@command("recombine", RecombineOptions)
def recombine_command(options: RecombineOptions) -> int | None:
    """Put HEAD on EXTRACTOR: check the contracts, build the network, measure it on the extractor's test images.

    Examples:
        # measure the pair on the test set trained on
        compatkit recombine digits/mnist.extractor digits/usps.head
        # and publish it as one network
        compatkit recombine digits/mnist.extractor digits/usps.head --publish digits/mixed
    """
    from compatkit.components.images import fitting_images
    from compatkit.components.stitching import needs_fit

    options.check_publishes()
    if options.publish is not None:
        check_target(options.publish, "recombination")
    registry = open_registry()
    left, right = registry.store.resolve(options.extractor), registry.store.resolve(options.head)
    pair = str(left), str(right)
    if options.publish is not None and not states_policy():
        wanted = policy_for_single_images(registry, left, right)
        options.bn_policy = DEFAULT if options.no_measure and estimates(wanted) else wanted
    report = registry.check(*pair, bn_policy=options.bn_policy)
    _refuse(report, options.insert_adapters)
    fits, reestimates = needs_fit(report), options.publish is not None and estimates(options.bn_policy)
    data = given_images = None
    if fits or reestimates or not options.no_measure:
        try:
            data = options.data_of(registry, pair[0])
        except DataError as error:
            if fits or reestimates:
                raise
            text = f"{error} Or build it without a figure: --no-measure."
            raise DataError(text, subject=error.subject) from error
        given_images = fitting_images(data)
    policy = "running" if options.no_measure else "batch"  # the matrix measures under the requested policy
    model = registry.recombine(
        *pair,
        bn_policy=policy if options.publish is None else options.bn_policy,
        data=given_images if fits or reestimates else None,
        insert_adapters=options.insert_adapters,
    )
    report, cell = model.report, None
    if data is not None and not options.no_measure:
        with progress("recombine") as done:
            matrix = registry.matrix(
                *pair,
                {left.name: data.test},
                fill="stale",
                adapters={pair: model.inserted},
                progress=done,
                **options.values_of(ConditionOptions),
            )
        cell = matrix.cell(*pair)
        if not model.inserted:  # figures with adapters are no evidence of the bare pair
            report = registry.check(*pair, bn_policy=options.bn_policy)
    reference, why_not, accuracy = None, _why_not(cell), None
    if options.publish is not None and not why_not:
        reference = registry.publish(model, options.publish, about=options.about())
        if cell is not None and data is not None and model.estimated:
            accuracy = _published_accuracy(model, data.test, options.batch_size)
    code = 1 if why_not else 0
    if options.json:
        measured = {"check": report.to_json(), "adapters": unstructure(model.contract.adapters)}
        published: dict[str, Any] = {} if options.publish is None else {"published": reference}
        if accuracy is not None:
            published["published_accuracy"] = attrs.asdict(accuracy)
        return emit({**measured, "cell": cell and attrs.asdict(cell), **published}, code)
    _print(report, cell, model, options.verbose)
    if options.publish is not None:
        _print_published(model, reference, why_not, accuracy)
    elif not why_not:
        flags = {"--insert-adapters": model.inserted, "--no-measure": cell is None}
        next_step(
            "recombine", *pair, *(flag for flag, is_set in flags.items() if is_set), "--publish", "NAME"
        )
    elif cell is not None and cell.grade == "chance":
        next_step("bridge", *pair, "--data", "IMAGES")
    return code


def _refuse(report: Report, insert_adapters: bool) -> None:
    """Raise for parts that cannot be wired, or only with adapters that were not requested.

    Raises:
        IncompatibleError: Carries the report.
    """
    if report.wiring == "direct" or (report.wiring == "needs-adapter" and insert_adapters):
        return
    text = str(report)
    if report.wiring == "needs-adapter":
        text += f"\nTo insert them: compatkit recombine {report.extractor} {report.head} --insert-adapters."
    raise IncompatibleError(text, subject=report)


def _why_not(cell: Cell | None) -> str:
    """Return why a recombination is not worth publishing; empty if it is, or was not measured on request."""
    if cell is None:
        return ""
    if cell.restricted is None:
        return f"it could not be measured: {cell.reason}"
    return "it is at chance" if cell.grade == "chance" else ""


def _print(report: Report, cell: Cell | None, model: Recombination, verbose: bool) -> None:
    """Print the check, the adapters and the measurement if there is one."""
    from compatkit.reports.wording import evidence_rows, settings_line, verdict

    click.echo(report_text(report, verbose=verbose))
    rows({f"adapter {number}": str(adapter) for number, adapter in enumerate(model.inserted, 1)})
    click.echo()
    if cell is None:
        click.echo("built; not measured")
        return
    words = verdict(cell)
    paragraph(f"{words.mark} {words.word}: {cell.reason or words.meaning}")
    if cell.restricted is None and words.key == "disjoint":
        paragraph(
            "Name images of the head's classes with --data, or build it without a figure: --no-measure."
        )
    figures = dict(evidence_rows(cell)) | {"Measured with": settings_line(cell.settings)}
    rows(figures if verbose else {label: text for label, text in figures.items() if label in BRIEF})
    if not verbose:
        click.echo("  (--verbose shows all findings and figures)")


def _published_accuracy(model: Recombination, test: Split, batch_size: int) -> Figure:
    """Return the accuracy of the network as published: with its own statistics, not those of the test images."""
    import torch

    from compatkit.components.bridges.judging import accuracy
    from compatkit.evaluation.batchnorm import evaluation_mode

    with evaluation_mode(model), torch.no_grad():
        logits = torch.cat([model(batch).cpu() for batch in model.normalized_batches(test, batch_size, None)])
    return accuracy(logits, test, model.sources[1])


def _print_published(
    model: Recombination, reference: str | None, why_not: str, accuracy: Figure | None
) -> None:
    """Print the reference of the published network with its accuracy, or why it was not published."""
    from compatkit.reports.wording import figure_text

    click.echo()
    if reference is None:
        paragraph(f"not published: {why_not}. --no-measure publishes it nevertheless.")
        return
    click.echo(f"published {reference}")
    if model.estimated:
        data = model.estimated["data"]
        paragraph(f"Its statistics are those of {data['images']:,} images of {data['name']}.")
        if accuracy is not None:
            rows({"Accuracy as published": figure_text(accuracy)})
            paragraph("The figures above were measured with statistics of the test images.")
    elif model.bn_policy == "batch" and normalizes([source.manifest for source in model.sources]):
        warn(f"{ALONE} Publish with --bn-policy reestimate, and --data if no images are found.")
    next_step("predict", reference, "PHOTOS")
    file = f"{reference.partition('@')[0].rpartition('/')[2]}.safetensors"
    next_step("export", reference, file)
