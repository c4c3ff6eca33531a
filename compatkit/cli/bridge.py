"""``compatkit bridge``: try bridges between two parts, or between all of two sets, and optionally publish them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.images import NamedDataOptions, data_sets, tests_for
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import columns, counted, emit, next_step, paragraph, progress
from compatkit.cli.releases import AboutOptions
from compatkit.cli.roots import SignatureOptions, check_target, open_registry, open_store
from compatkit.cli.tables import TableOptions
from compatkit.cli.workers import WorkerOptions
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.components.bridges.ladder import RungResult

ONE_PAIR = ("labels", "head_data", "on", "every", "png", *AboutOptions.__annotations__)
"""Options that sets do not take."""
UNTIL = 0.8


class BridgeOptions(AboutOptions, SignatureOptions, NamedDataOptions, WorkerOptions, TableOptions):
    """Arguments and options of ``bridge``."""

    extractor: str = argument()
    head: str = argument()
    name: str | None = option(
        "Unlabeled images of the extractor's domain: a folder of files, or a data set. Of sets: the same for all "
        "extractors; default: the training images of each.",
        "--data",
    )
    labels: str | None = option("Labeled training images, for the rungs that are trained with labels.")
    test: str | None = option("Labeled test set to measure on; default: that of --data.")
    head_data: str | None = option("Images of the head's domain, for pairing features.")
    on: str | None = option(
        "Images on which features are paired: --data (src), --head-data (dst, the default if given) or both.",
        choices=("src", "dst", "mix"),
    )
    rungs: str | None = option(
        "Try only these: direct, statistics, permutation, procrustes, ridge, ridge-procrustes, ridge3x3, absorbed, "
        "stitch, stitch-labels, finetune, infomax. Default: all but infomax. Of sets: one that inserts an adapter; "
        "default: best, the one in closed form that agrees most.",
        metavar="NAME,...",
    )
    until: float = option("Stop at this agreement, if the rung also fits.", min=0, max=1, default=UNTIL)
    every: bool = option("Try all rungs, whatever the agreement.", "--all")
    max_images: int = option("Limit of the images to fit on.", min=2, default=1000)
    seed: int = option("Seed of orders and draws.", min=0, max=2**63 - 1, default=0)
    png: Path | None = option("Draw agreement against seconds of all rungs.", is_output=True)
    publish: str | None = option(
        "Publish the bridge as NAME, if it fits; of sets, each as NAME/EXTRACTOR--HEAD when it is made."
    )
    accept_doubtful: bool = option("Publish even if the verdict is doubtful.")


@command("bridge", BridgeOptions)
def bridge_command(options: BridgeOptions) -> int | None:
    """Make HEAD work on EXTRACTOR, which it was not trained with, using unlabeled images.

    The rungs of a ladder are tried, from a linear map to fine-tuning, the cheapest first. A rung is judged by its
    agreement with the head's own network on held-out images. With patterns, every pair that was not trained together
    gets one rung, and its bridge is kept in the registry.

    Examples:
        # fit a bridge on unlabeled photos, and publish it if it is sound
        compatkit bridge zoo/one.extractor zoo/other.head --data photos/ --publish zoo/bridged
        # bridge all pairs in two processes, and publish those that fit
        compatkit bridge 'zoo/*.extractor' 'zoo/*.head' --rungs ridge --publish pairs --workers 2
    """
    from compatkit.components.bridges.publishing import check_names
    from compatkit.registry.resolving import is_pattern

    options.check_publishes()
    if options.accept_doubtful and options.publish is None:
        raise UsageError("--accept-doubtful needs --publish NAME.", subject="--accept-doubtful")
    if is_pattern(options.extractor) or is_pattern(options.head):
        return _bridge_sets(options)
    if options.name is None:
        raise UsageError("--data names images of the extractor's domain; it is missing.", subject="--data")
    for name, value in options.values_of(WorkerOptions).items():
        if value not in (None, "auto"):
            raise UsageError(
                f"--{name} divides pairs among processes, and this is one pair. Name sets with patterns, such as "
                "'zoo/*.head'.",
                subject=f"--{name}",
            )
    if options.publish is not None:
        check_target(options.publish, "recombination")
        check_target(f"{options.publish}.adapter", "adapter")
        check_target(f"{options.publish}.head", "head")
        check_names(open_store(), options.publish)
    registry = open_registry()
    data, tests = options.images_and_tests(options.name, options.test)
    if options.test is None:
        tests = tests_for(registry.store.manifest(options.head), options.head, tests)
    rungs = options.rungs and [rung.strip() for rung in options.rungs.split(",") if rung.strip()]
    with progress("bridge") as report:
        bridge = registry.bridge(
            options.extractor,
            options.head,
            data,
            labels=None if options.labels is None else options.load(options.labels).train,
            test=tests,
            head_data=None if options.head_data is None else options.images_and_tests(options.head_data)[0],
            rungs=rungs,
            until=None if options.every else options.until,
            progress=report,
            **options.only("max_images", "on", "seed"),
        )
    published = {}
    if options.publish is not None and (
        bridge.says == "fit" or (bridge.says == "doubtful" and options.accept_doubtful)
    ):
        published = registry.publish(
            bridge, options.publish, about=options.about(), accept_doubtful=options.accept_doubtful
        )
    if options.png is not None:
        bridge.to_png(options.png)
    options.write_tables(bridge)
    code = 1 if bridge.says == "no fit" or (options.publish is not None and not published) else 0
    if options.json:
        return emit(bridge.to_json() | {"published": published or None}, code)
    head = ("rung", "agreement", "kappa", "R2", "accuracy", "images", "labels", "seconds", "")
    columns([head, *(_row(step, bridge.chosen) for step in bridge.steps)], right=range(1, 8))
    agreement, notes = bridge.agreement, [f"{step.rung}: {step.note}" for step in bridge.steps if step.note]
    paragraph(
        f"{bridge.says}, judged by {bridge.judged_by}: {bridge.chosen} agrees with the head's own network on "
        f"{agreement.accuracy:.3f} ({agreement.low:.3f} to {agreement.high:.3f}) of {agreement.count:,} images."
    )
    if bridge.details["reference"] is not None:
        paragraph(f"The head's own network reaches {bridge.details['reference']:.3f} on the test images.")
    for note in (*notes, *bridge.notes):
        paragraph(note)
    for what, reference in published.items():
        click.echo(f"published {what} {reference}")
    if published:
        next_step("show", published["recombination"])
    elif options.publish is None:
        click.echo("not published; --publish NAME does")
    elif bridge.says == "no fit":
        click.echo("not published: it does not fit")
    else:
        paragraph(
            "not published: it is doubtful. Measure it with --test or --labels, or add --accept-doubtful."
        )
    return code


def _bridge_sets(options: BridgeOptions) -> int:
    """Bridge all pairs of two sets; return the exit code."""
    from compatkit.components.bridges.ladder import BEST
    from compatkit.components.images import fitting_images
    from compatkit.evaluation.component import pinned

    for name in ONE_PAIR:
        if getattr(options, name) not in (None, False, {}):
            text = (
                "all"
                if name == "every"
                else name.removesuffix("s" if name == "tags" else "").replace("_", "-")
            )
            raise UsageError(f"--{text} is for one pair; leave it out for sets.", subject=f"--{text}")
    if options.until != UNTIL or (rungs := options.rungs or BEST).count(","):
        raise UsageError("Sets take one rung (--rungs ridge, or best), and no --until.", subject="--rungs")
    registry = open_registry()
    lefts = list(map(pinned, registry.store.select(options.extractor, "extractor")))
    if options.name is None:
        sets = data_sets(registry, lefts, options)
        data = {name: fitting_images(each) for name, each in sets.items()}
        tests = {name: each.test for name, each in sets.items()}
        if options.test is not None:
            tests = dict.fromkeys(lefts, options.load(options.test).test)
    else:
        images, test = options.images_and_tests(options.name, options.test)
        data, tests = dict.fromkeys(lefts, images), {} if test is None else dict.fromkeys(lefts, test)
    with progress("bridges") as report:
        bridges = registry.bridges.between(
            options.extractor,
            options.head,
            data,
            rungs.strip(),
            tests=tests,
            progress=report,
            **options.only("max_images", "seed", "publish", "accept_doubtful"),
            **options.values_of(WorkerOptions),
        )
    fits = sum(bridge.says == "fit" for bridge in bridges.values())
    code = 1 if bridges.failed or not (bridges.published if options.publish else bridges) else 0
    options.write_tables(bridges)
    rows = bridges.to_json()
    if options.json:
        return emit({"pairs": rows}, code)
    head = ("extractor", "head", "rung", "verdict", "agreement", "kappa", "accuracy", "published")
    columns([head, *(tuple(map(_shown, list(row.values())[: len(head)])) for row in rows)], right=range(4, 7))
    paragraph(f"{counted(len(bridges), 'pair')} bridged; {fits:,} fit, {len(bridges.published):,} published.")
    if others := len(bridges.left_out) + len(bridges.failed):
        paragraph(f"{counted(others, 'pair')} without a bridge: see the warnings.")
    return code


def _shown(value: str | float | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.3f}"


def _row(step: RungResult, chosen: str) -> tuple[str, ...]:
    if step.agreement is None:
        return (step.rung, "-", "", "", "", "", "", "", "left out")
    kappa = None if step.agreed is None else step.agreed.kappa
    return (
        step.rung,
        f"{step.agreement.accuracy:.3f}",
        "" if kappa is None else f"{kappa:.3f}",
        "" if step.explained is None else f"{step.explained:.2f}",
        "" if step.accuracy is None else f"{step.accuracy.accuracy:.3f}",
        f"{step.images:,}",
        f"{step.labels:,}" if step.labels else "",
        f"{step.seconds:.2f}",
        "chosen" if step.rung == chosen else "",
    )
