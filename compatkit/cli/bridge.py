"""``compatkit bridge``: try the rungs of the ladder between two parts, and optionally publish the bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.images import images_and_tests, load_data_set, tests_for
from compatkit.cli.options import (
    NamedDataAsked,
    PathType,
    about,
    about_options,
    check_publishes,
    command,
    given,
    named_data_options,
    signature_options,
)
from compatkit.cli.output import columns, emit, next_step, paragraph, progress
from compatkit.cli.roots import check_outputs, check_target, registry, store
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.components.bridges.ladder import Bridge, RungResult
    from compatkit.contracts.evidence import Figure

WORDS = {
    "fit": "the bridge fits",
    "doubtful": "doubtful: agreement does not tell whether the bridge fits; measure it with labels (--test)",
    "no fit": "no fit: the bridge says other things than the head's own network",
}
MEASURED = "doubtful: agreement does not tell whether the bridge fits; see its accuracy"
BY_LABELS = {
    "fit": "the bridge fits, by labels",
    "doubtful": "doubtful: too few labeled images were kept apart to know; pass more with --labels",
    "no fit": "no fit: the bridge is right no more often than one answer to all images",
}


class BridgeAsked(NamedDataAsked):
    """Arguments and options of ``bridge``."""

    extractor: str
    head: str
    name: str
    labels: str | None
    test: str | None
    head_data: str | None
    on: str | None
    rungs: str | None
    until: float
    every: bool
    images: int
    seed: int
    png: str | None
    publish: str | None
    accept_doubtful: bool


@command(
    "bridge",
    BridgeAsked,
    help="Bridge HEAD to EXTRACTOR, which it was not trained with, on unlabeled images, trying rungs from the "
    "cheapest on. A rung is judged by its agreement with the head's own network on held-out images.",
)
@click.argument("extractor")
@click.argument("head")
@click.option(
    "--data",
    "name",
    required=True,
    metavar="NAME",
    help="Images of the extractor's domain: a folder of image files, or a data set by name, path or address; labels "
    "are ignored.",
)
@click.option("--labels", metavar="NAME", help="Labeled training images, for the rungs trained with labels.")
@click.option(
    "--test",
    metavar="NAME",
    help="Measure on this labeled test set; else on that of --data, if the head knows its classes.",
)
@click.option("--head-data", metavar="NAME", help="Images of the head's domain, for pairing features.")
@click.option(
    "--on",
    type=click.Choice(("src", "dst", "mix")),
    help="Where features are paired: on --data (src), --head-data (dst) or both; dst if --head-data is given.",
)
@click.option(
    "--rungs",
    metavar="NAME,...",
    help="Try only these: direct, statistics, permutation, procrustes, ridge, ridge-procrustes, ridge3x3, absorbed, "
    "stitch, stitch-labels, finetune, infomax. Default: all but infomax.",
)
@click.option(
    "--until",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Agreement at which to stop, if the rung also fits.",
)
@click.option("--all", "every", is_flag=True, help="Try all rungs, whatever the agreement.")
@click.option(
    "--images", type=click.IntRange(2), default=1000, show_default=True, help="Most images to fit on."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Seed of orders and draws.",
)
@click.option("--png", type=PathType(), metavar="FILE", help="Draw the ladder: agreement against seconds.")
@click.option("--publish", metavar="NAME", help="Publish the bridge as NAME, if it fits.")
@click.option("--accept-doubtful", is_flag=True, help="Publish a bridge whose verdict is doubtful, too.")
@about_options
@signature_options
@named_data_options
def bridge_command(context: click.Context, asked: BridgeAsked) -> None:
    """Try rungs, choose, print, and publish if a name is given; exit code 1 if nothing fits or is published."""
    from compatkit.components.bridges.keeping import check_names

    check_publishes(context, asked.publish)
    if asked.accept_doubtful and asked.publish is None:
        raise UsageError(
            "--accept-doubtful says what may be published; add --publish NAME.", subject="--accept-doubtful"
        )
    check_outputs({"--png": asked.png})
    if asked.publish is not None:
        check_target(context, asked.publish, "recombination")
        check_target(context, f"{asked.publish}.adapter", "adapter")
        check_target(context, f"{asked.publish}.head", "head")
        check_names(store(context), asked.publish)
    held, where = registry(context), (asked.data_root, asked.download, asked.damaged)
    data, tests = images_and_tests(asked.name, asked.test, *where)
    if asked.test is None:
        tests = tests_for(held.store.manifest(asked.head), asked.head, tests)
    rungs = None
    if asked.rungs is not None:
        rungs = [one.strip() for one in asked.rungs.split(",") if one.strip()]
    with progress("bridge") as report:
        found = held.bridge(
            asked.extractor,
            asked.head,
            data,
            labels=None if asked.labels is None else load_data_set(asked.labels, *where).train,
            test=tests,
            head_data=None if asked.head_data is None else images_and_tests(asked.head_data, None, *where)[0],
            rungs=rungs,
            until=None if asked.every else asked.until,
            progress=report,
            **asked.only("images", "on", "seed"),
        )
    good, kept = found.says == "fit" or (found.says == "doubtful" and asked.accept_doubtful), {}
    if good and asked.publish is not None:
        kept = held.publish(found, asked.publish, about=about(context), accept_doubtful=asked.accept_doubtful)
    if asked.png is not None:
        found.to_png(asked.png)
    code = 1 if found.says == "no fit" or (asked.publish is not None and not kept) else 0
    if asked.machine:
        emit(found.to_json() | {"published": kept or None})
        context.exit(code)
    _tell(found)
    for what, reference in kept.items():
        click.echo(f"published {what} {reference}")
    if kept:
        next_step("compatkit", *given(context).words, "show", kept["recombination"])
    elif asked.publish is not None and found.says == "no fit":
        click.echo("not published: it does not fit")
    elif asked.publish is not None:
        paragraph(
            "not published: it is doubtful. Measure it with labels (--test, --labels), or add --accept-doubtful."
        )
    else:
        click.echo("nothing was published; --publish NAME keeps the bridge")
    context.exit(code)


def _tell(found: Bridge) -> None:
    head = ("rung", "agreement", "kappa", "R2", "accuracy", "images", "labels", "seconds", "")
    columns([head, *(_row(one, found.chosen) for one in found.steps)], right=range(1, 8))
    click.echo()
    agreement, said = found.agreement, BY_LABELS if found.judged_by == "labels" else WORDS
    measured = found.says == "doubtful" and found.step(found.chosen).accuracy is not None
    click.echo(f"{MEASURED if measured else said[found.says]}: {found.chosen}")
    paragraph(
        f"It says what the head's own network says on {_share(agreement)} of {agreement.count:,} images that nothing "
        f"was fitted to ({agreement.low:.3f} to {agreement.high:.3f})."
    )
    if found.facts["reference"] is not None:
        paragraph(f"The head's own network reaches {found.facts['reference']:.3f} on the test images.")
    for note in (*(f"{one.rung}: {one.note}" for one in found.steps if one.note), *found.notes):
        paragraph(note)


def _row(step: RungResult, chosen: str) -> tuple[str, ...]:
    if step.agreement is None:
        return (step.rung, "-", "", "", "", "", "", "", "left out")
    kappa = None if step.agreed is None else step.agreed.kappa
    return (
        step.rung,
        _share(step.agreement),
        "" if kappa is None else f"{kappa:.3f}",
        "" if step.explained is None else f"{step.explained:.2f}",
        "" if step.accuracy is None else _share(step.accuracy),
        f"{step.images:,}",
        f"{step.labels:,}" if step.labels else "",
        f"{step.seconds:.2f}",
        "chosen" if step.rung == chosen else "",
    )


def _share(figure: Figure) -> str:
    return f"{figure.accuracy:.3f}"
