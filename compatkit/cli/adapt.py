"""``compatkit adapt``: adapt an extractor to unlabeled images, measure and optionally publish it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import found_in, images_and_tests
from compatkit.cli.options import (
    NamedDataAsked,
    PathType,
    about,
    about_options,
    check_publishes,
    command,
    given,
    named_data_options,
    options,
    sign_option,
    signature_options,
    version_option,
)
from compatkit.cli.output import columns, emit, news, next_step, progress
from compatkit.cli.roots import check_target, registry
from compatkit.cli.sign import chosen_key, sign_published

if TYPE_CHECKING:
    from compatkit.components.domains import Adapted

trainer_options = options(
    click.option("--steps", type=click.IntRange(1), help="Steps; 1000."),
    click.option(
        "--lr",
        type=click.FloatRange(0, min_open=True),
        help="Learning rate, constant over all steps; 1e-5.",
    ),
    click.option("--weight-decay", type=click.FloatRange(0), help="L2 penalty; 0."),
    click.option("--optimizer", type=click.Choice(("sgd", "adam")), help="sgd, with momentum .9."),
    click.option("--batch-size", type=click.IntRange(2), help="Images per step; 64."),
    click.option("--seed", type=click.IntRange(0), help="Seed of the order of the images; 0."),
    click.option("--device", help="Where to train: auto (the default), cpu, cuda, ..."),
    click.option("--checkpoint", type=PathType(), metavar="FILE", help="Keep the state in this file."),
)
"""Settings of the trainer; the paper's by default."""
SETTINGS = ("steps", "lr", "weight_decay", "optimizer", "batch_size", "seed", "device", "checkpoint")


class AdaptAsked(NamedDataAsked):
    """Arguments and options of ``adapt``."""

    extractor: str
    head: str
    aux: str
    name: str
    test: str | None
    method: str | None
    augment: tuple[str, ...]
    frozen_statistics: str
    steps: int | None
    lr: float | None
    weight_decay: float | None
    optimizer: str | None
    batch_size: int | None
    seed: int | None
    device: str | None
    checkpoint: str | None
    publish: str | None
    version: str | None


@command(
    "adapt",
    AdaptAsked,
    help="Adapt EXTRACTOR to unlabeled images with the loss of the frozen shared head that it was trained with; HEAD, "
    "the source's own, is combined with it unchanged. Training defaults are those of the paper, except for "
    "--frozen-statistics.",
)
@click.argument("extractor")
@click.argument("head")
@click.option("--aux", required=True, metavar="NAME", help="The self-supervised shared head, a component.")
@click.option(
    "--data",
    "name",
    required=True,
    metavar="NAME",
    help="Images of the target domain: a folder of image files, or a data set by name, path or address; labels are "
    "ignored.",
)
@click.option("--test", metavar="NAME", help="Measure on this labeled test set; else on that of --data.")
@click.option(
    "--method", metavar="NAME", help="The regularizer of the head, if its manifest does not name it."
)
@click.option("--augment", type=click.Choice(("crop", "flip")), multiple=True, help="May be given twice.")
@click.option(
    "--frozen-statistics",
    type=click.Choice(("stored", "batch")),
    default="stored",
    show_default=True,
    help="Batch-norm statistics inside the shared head; the paper uses those of the batch.",
)
@trainer_options
@click.option("--publish", metavar="NAME", help="Publish the adapted extractor as NAME.")
@version_option
@about_options
@sign_option
@signature_options
@named_data_options
def adapt_command(context: click.Context, asked: AdaptAsked) -> None:
    """Adapt, measure if there are labels, and publish if a name is given."""
    from compatkit.components.domains import paper

    check_publishes(context, asked.publish, asked.version)
    if asked.publish is not None:
        check_target(context, asked.publish, "extractor", asked.version)
    key, held = chosen_key(context), registry(context)
    images, tests = images_and_tests(asked.name, asked.test, asked.data_root, asked.download, asked.damaged)
    trainer = paper(**{name: value for name, value in asked.only(*SETTINGS).items() if value is not None})
    news(f"{len(images):,} images of {images.name}, {trainer.steps:,} steps; their labels are not read")
    adapted = held.adapt(
        asked.extractor,
        asked.head,
        asked.aux,
        images,
        trainer=trainer,
        test=tests,
        **asked.only("method", "frozen_statistics", "augment"),
    )
    kept, signed = None, {}
    if asked.publish is not None:
        with progress("policies") as report:
            kept = held.publish(
                adapted,
                asked.publish,
                version=asked.version,
                about=about(context),
                data=(*([] if tests is None else [tests]), found_in(asked.data_root, asked.download)),
                progress=report,
            )
        signed = sign_published(held, [kept], key)
    if asked.machine:
        emit({**_to_json(adapted), "steps": trainer.steps, "published": kept, **signed})
    else:
        _tell(context, adapted, kept)


def _to_json(adapted: Adapted) -> dict[str, Any]:
    return {
        "source": adapted.source.reference,
        "head": adapted.head.reference,
        "data": dict(adapted.fit.run["tasks"][0]["data"]),
        "losses": adapted.fit.history[-1]["losses"],
        "accuracy": adapted.accuracy,
        "plan": adapted.fit.plan,
    }


def _tell(context: click.Context, adapted: Adapted, kept: str | None) -> None:
    last = adapted.fit.history[-1]["losses"]
    click.echo(", ".join(f"{name} {value:.3f}" for name, value in last.items()) + " in the last steps")
    table = [("extractor", "statistics", "accuracy", "")]
    for (who, policy), cell in adapted.cells.items():
        found = cell.restricted
        figure = "-" if found is None else f"{found.accuracy:.3f}"
        table.append((who, policy, figure, cell.reason if found is None else f"of {found.count:,}"))
    if adapted.cells:
        columns(table, right=(2,))
    else:
        click.echo("not measured: no labeled images are known; --test NAME names some")
    if kept is None:
        click.echo("nothing was published; --publish NAME keeps the extractor")
        return
    click.echo(f"published {kept}")
    where = given(context).words
    next_step("compatkit", *where, "recombine", kept, adapted.head.reference, "--bn-policy", "batch")
