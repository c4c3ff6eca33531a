"""``compatkit adapt``: adapt an extractor to unlabeled images, measure and optionally publish it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.images import NamedDataOptions
from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import columns, emit, news, next_step, progress
from compatkit.cli.releases import AboutOptions, SigningOptions, sign_published, version_option
from compatkit.cli.roots import SignatureOptions, check_target, open_registry

if TYPE_CHECKING:
    from compatkit.components.domains import Adapted


class TrainerOptions(Options):
    """Settings of the trainer; defaults are the paper's."""

    steps: int | None = option("Steps; 1000.", min=1)
    lr: float | None = option("Learning rate, constant over all steps; 1e-5.", min=0, min_open=True)
    weight_decay: float | None = option("L2 penalty; 0.", min=0)
    optimizer: str | None = option("sgd, with momentum .9.", choices=("sgd", "adam"))
    batch_size: int | None = option("Images per step; 64.", min=2)
    seed: int | None = option("Seed of the order of the images; 0.", min=0)
    device: str | None = option("Device: auto (the default), cpu, cuda, ...")
    checkpoint: Path | None = option("Save the state of the run to this file.")


class AdaptOptions(TrainerOptions, AboutOptions, SigningOptions, SignatureOptions, NamedDataOptions):
    """Arguments and options of ``adapt``."""

    extractor: str = argument()
    head: str = argument()
    aux: str = option("Reference of the self-supervised shared head.")
    name: str = option("Unlabeled images of the target domain: a folder of files, or a data set.", "--data")
    test: str | None = option("Labeled test set to measure on; default: that of --data.")
    method: str | None = option("Regularizer of the shared head, if its manifest does not name it.")
    augment: tuple[str, ...] = option("Augmentation; may be given twice.", choices=("crop", "flip"))
    frozen_statistics: str = option(
        "Batch-norm statistics inside the shared head; the paper uses those of the batch.",
        choices=("stored", "batch"),
        default="stored",
    )
    publish: str | None = option("Publish the adapted extractor as NAME.")
    version: str | None = version_option


@command("adapt", AdaptOptions)
def adapt_command(options: AdaptOptions) -> int | None:
    """Train EXTRACTOR further on unlabeled images of another domain, so that its own HEAD works there unchanged.

    The loss is that of the frozen self-supervised shared head (--aux) that both were trained with.

    Examples:
        # adapt to photos without labels, by rotation prediction
        compatkit adapt digits/mnist.extractor digits/mnist.head --aux digits/shared.rotation --data
            photos/ --publish digits/photos.extractor
    """
    from compatkit.components.domains import paper

    options.check_publishes()
    if options.publish is not None:
        check_target(options.publish, "extractor", options.version)
    key, registry = options.key(), open_registry()
    images, tests = options.images_and_tests(options.name, options.test)
    settings = {name: value for name, value in options.values_of(TrainerOptions).items() if value is not None}
    trainer = paper(**settings)
    news(f"{len(images):,} images of {images.name}, {trainer.steps:,} steps; their labels are not read")
    adapted = registry.adapt(
        options.extractor,
        options.head,
        options.aux,
        images,
        trainer=trainer,
        test=tests,
        **options.only("method", "frozen_statistics", "augment"),
    )
    reference, signed = None, {}
    if options.publish is not None:
        with progress("policies") as report:
            reference = registry.publish(
                adapted,
                options.publish,
                version=options.version,
                about=options.about(),
                data=(*([] if tests is None else [tests]), options.finder()),
                progress=report,
            )
        signed = sign_published(registry, [reference], key)
    if options.json:
        result = {
            "source": adapted.source.reference,
            "head": adapted.head.reference,
            "data": dict(adapted.fit.run["tasks"][0]["data"]),
            "losses": adapted.fit.history[-1]["losses"],
            "accuracy": adapted.accuracy,
            "plan": adapted.fit.plan,
        }
        return emit({**result, "steps": trainer.steps, "published": reference, **signed})
    _print(adapted, reference)


def _print(adapted: Adapted, reference: str | None) -> None:
    last = adapted.fit.history[-1]["losses"]
    click.echo(", ".join(f"{name} {value:.3f}" for name, value in last.items()) + " in the last steps")
    table = [("extractor", "statistics", "accuracy", "")]
    for (who, policy), cell in adapted.cells.items():
        measured = cell.restricted
        figure = "-" if measured is None else f"{measured.accuracy:.3f}"
        table.append((who, policy, figure, cell.reason if measured is None else f"of {measured.count:,}"))
    if adapted.cells:
        columns(table, right=(2,))
    else:
        click.echo("not measured: no labeled test images; --test NAME names some")
    if reference is None:
        click.echo("nothing was published; --publish NAME keeps the extractor")
        return
    click.echo(f"published {reference}")
    next_step("recombine", reference, adapted.head.reference, "--bn-policy", "batch")
