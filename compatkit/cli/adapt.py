"""``compatkit adapt``: an extractor moved to images without labels, measured, and kept if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import images_and_tests
from compatkit.cli.keeping import check_target
from compatkit.cli.options import (
    about,
    about_options,
    check_publishes,
    data_options,
    given,
    json_option,
    registry_option,
    sign_option,
    signature_options,
)
from compatkit.cli.outcome import found_in
from compatkit.cli.output import columns, emit, news, next_step, progress
from compatkit.cli.roots import registry
from compatkit.cli.signing import chosen_key, sign_published
from compatkit.registry.names import Version

if TYPE_CHECKING:
    from compatkit.components.domains import Adapted
    from compatkit.training.trainer import Trainer

SETTINGS = ("steps", "lr", "weight_decay", "optimiser", "batch_size", "seed", "device", "checkpoint")
"""Options that are settings of the trainer; those that are not given are the paper's."""


def _training_options(function: Any) -> Any:
    """Add what decides how the extractor is tuned."""
    above = click.FloatRange(0, min_open=True)
    for option in (
        click.option("--checkpoint", type=click.Path(), metavar="FILE", help="Keep the state in this file."),
        click.option("--device", help="Where to train: auto (the default), cpu, cuda, ..."),
        click.option("--seed", type=click.IntRange(0), help="Of the order of the images; 0."),
        click.option("--batch-size", type=click.IntRange(2), help="Images a step; 64."),
        click.option("--optimiser", type=click.Choice(("sgd", "adam")), help="sgd, with momentum .9."),
        click.option("--weight-decay", type=click.FloatRange(0), help="L2 penalty; 0."),
        click.option("--lr", type=above, help="Learning rate, the same in all steps; 1e-5."),
        click.option("--steps", type=click.IntRange(1), help="Steps; 1000."),
    ):
        function = option(function)
    return function


@click.command(
    "adapt",
    help="Move EXTRACTOR to images without labels: the loss of the frozen shared head that it was trained with tunes "
    "it, and HEAD, the source's own, is put on it as it is. Defaults of the training are those of the paper, but for "
    "--frozen-statistics, whose default is compatkit's.",
)
@click.argument("extractor")
@click.argument("head")
@click.option("--aux", required=True, metavar="NAME", help="The self-supervised shared head, a component.")
@click.option(
    "--data",
    "name",
    required=True,
    metavar="NAME",
    help="Images of the target: a folder of image files, a data set by name, or an .npz pack, with labels or without: "
    "they are not read.",
)
@click.option("--test", metavar="NAME", help="Measure on this labelled test set; else on that of --data.")
@click.option("--method", metavar="NAME", help="The regularizer whose head it is, if the head does not say.")
@click.option("--augment", type=click.Choice(("crop", "flip")), multiple=True, help="May be given twice.")
@click.option(
    "--frozen-statistics",
    type=click.Choice(("stored", "batch")),
    default="stored",
    show_default=True,
    help="Statistics of batch normalisation inside the shared head; the paper takes those of the batch.",
)
@_training_options
@click.option("--publish", metavar="NAME", help="Keep the adapted extractor under NAME.")
@click.option("--version", metavar="X.Y.Z", help="Its number; else the least step that it needs.")
@about_options
@sign_option
@signature_options
@data_options
@registry_option
@json_option
@click.pass_context
def adapt_command(
    context: click.Context,
    extractor: str,
    head: str,
    aux: str,
    name: str,
    test: str | None,
    method: str | None,
    augment: tuple[str, ...],
    frozen_statistics: Any,
    publish: str | None,
    version: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
    **settings: Any,
) -> None:
    """Adapt, measure where there are labels, and publish where a name is given."""
    from compatkit.components.domains import paper

    check_publishes(context, publish, version)
    if version is not None:
        Version.parse(version)
    if publish is not None:
        check_target(context, publish, "extractor")
    key, held = chosen_key(context), registry(context)
    images, tests = images_and_tests(name, test, data_root, download)
    trainer = paper(**{word: settings[word] for word in SETTINGS if settings[word] is not None})
    news(f"{len(images):,} images of {images.name}, {trainer.steps:,} steps; their labels are not read")
    adapted = held.adapt(
        extractor,
        head,
        aux,
        images,
        trainer=trainer,
        method=method,
        frozen_statistics=frozen_statistics,
        test=tests,
        augment=augment,
    )
    kept = None
    if publish is not None:
        with progress("policies") as report:
            deciding = (*([] if tests is None else [tests]), found_in(data_root, download))
            kept = held.publish(
                adapted, publish, version=version, about=about(context), data=deciding, progress=report
            )
    signed = sign_published(held, [kept], key) if kept is not None else {}
    if machine:
        emit(_to_json(adapted, kept, trainer) | signed)
    else:
        _tell(context, adapted, kept)


def _to_json(adapted: Adapted, kept: str | None, trainer: Trainer) -> dict[str, Any]:
    return {
        "source": adapted.source.reference,
        "head": adapted.head.reference,
        "data": dict(adapted.fit.run["tasks"][0]["data"]),
        "steps": trainer.steps,
        "losses": adapted.fit.history[-1]["losses"],
        "accuracy": adapted.accuracy,
        "published": kept,
        "plan": adapted.fit.plan,
    }


def _tell(context: click.Context, adapted: Adapted, kept: str | None) -> None:
    last = adapted.fit.history[-1]["losses"]
    click.echo(", ".join(f"{name} {value:.3f}" for name, value in last.items()) + " in the last steps")
    if adapted.cells:
        table = [("extractor", "statistics", "accuracy", "")]
        for (who, policy), cell in adapted.cells.items():
            found = cell.restricted
            figure = "-" if found is None else f"{found.accuracy:.3f}"
            table.append((who, policy, figure, cell.reason if found is None else f"of {found.count:,}"))
        columns(table, right=(2,))
    else:
        click.echo("not measured: no labelled images are known; --test NAME names some")
    if kept is None:
        click.echo("nothing was published; --publish NAME keeps the extractor")
        return
    click.echo(f"published {kept}")
    next_step(
        "compatkit",
        *given(context).words,
        "recombine",
        kept,
        adapted.head.reference,
        "--bn-policy",
        "batch",
    )
