"""``compatkit train RECIPE``: train a recipe and publish the parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.command_line import command_line
from compatkit.cli.images import DataOptions, named_options, offline
from compatkit.cli.options import argument, command, logger_option, option
from compatkit.cli.output import emit, is_main_process, news
from compatkit.cli.publish import Publication, ReleaseOptions, load
from compatkit.cli.roots import destination
from compatkit.cli.writable import check_folder
from compatkit.errors import EnvironmentFailure, UsageError

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData
    from compatkit.data.dataset import DataSet
    from compatkit.experiments.recipes import Recipe
    from compatkit.training.checkpoints import CheckpointStatus
    from compatkit.training.fit import Fit
    from compatkit.training.prepare import Frozen
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer

NOTES = 3
"""Pairs of tasks whose classes are compared in print."""


class TrainOptions(ReleaseOptions, DataOptions):
    """Arguments and options of ``train``."""

    recipe: Path = argument()
    seed: int | None = option("Seed, instead of the recipe's.", min=0)
    steps: int | None = option("Steps of each task, instead of the recipe's.", min=1)
    out: Path | None = option(
        "Folder of checkpoints; default: REGISTRY-runs/RECIPE-... in the current folder.", metavar="DIR"
    )
    checkpoint: Path | None = option("Save checkpoints to this file, and resume from it if it exists.")
    new_augment: bool = option(
        "Resume (--out, --checkpoint) although `augment` changed; the manifest records it."
    )
    loggers: dict[str, dict[str, Any]] = logger_option
    explain: bool = option("Show the plan (tasks, parameters, hooks, execution); train nothing.")
    profile: int | None = option("Profile this many steps; train nothing.", min=1, metavar="STEPS")


@command("train", TrainOptions)
def train_command(options: TrainOptions) -> int | None:
    """Train the tasks of RECIPE, a TOML file (see examples/), and publish their parts.

    Checkpoints are saved every two minutes and on Ctrl-C or SIGTERM; the same command resumes the run.

    Examples:
        # train and publish
        compatkit train examples/mnist_usps.toml --data-root packs
        # show the plan, train nothing
        compatkit train examples/mnist_usps.toml --explain
        # train, and test policies without publishing
        compatkit train examples/mnist_usps.toml --dry-run
    """
    options.check_numbers()
    if options.out is not None and options.checkpoint is not None:
        raise UsageError("--out and --checkpoint exclude each other.")
    if options.new_augment and options.out is None and options.checkpoint is None:
        raise UsageError("--new-augment resumes another run; name it with --out or --checkpoint.")
    from compatkit.experiments.recipes import StartedRun

    if options.download and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "--download needs a single process. Download first: compatkit train RECIPE --steps 1 --dry-run --download."
        )
    first, notes = is_main_process(), list[str]()
    root, key = (destination(), options.key()) if first else (Path("registry"), None)
    started = StartedRun.of(
        str(options.recipe),
        root,
        options.load_arguments["root"],
        settings={
            **options.only("seed", "steps"),
            "checkpoint": options.checkpoint and str(options.checkpoint),
            "loggers": options.loggers or None,
            "new_augment": options.new_augment or None,
        },
        prefix=options.prefix,
        about=options.described(),
        command=("compatkit", *command_line().arguments),
    )
    with named_options():
        plan, frozen = load(started, options.download)
    if options.explain or options.profile is not None:
        _look(plan, frozen, options)
        return None
    folder = None
    if plan.trainer.checkpoint is None:
        folder = started.default_folder() if options.out is None else options.out
        plan = attrs.evolve(plan, trainer=_stored_in(folder, plan.trainer))
    images = (options.finder(),)
    if first:
        _check_checkpoint(plan.trainer.checkpoint, folder)
        notes = [] if options.major else _check_versions(root, plan, options.version, images)
        _announce(plan)
    keeping = started.in_folder(folder) if first and folder is not None else nullcontext()
    with keeping, offline(unless=options.download):
        fit = _fit(plan, frozen, started.command_line(), notes)
    if not first:
        return None
    has_folder = options.out is not None
    return Publication(options, root, plan, started, folder, has_folder, images, plan.about, key).publish(fit)


def _stored_in(folder: Path, trainer: Trainer) -> Trainer:
    """Return a trainer that keeps its state in the folder of its run, which gives the run its name."""
    name = trainer.run_name or folder.absolute().name
    from compatkit.experiments.recipes import STATE

    return attrs.evolve(trainer, checkpoint=folder / STATE, run_name=name)


def _fit(plan: Recipe, frozen: Frozen, again: str, notes: Sequence[str]) -> Fit:
    """Train, resuming from a checkpoint if there is one; after an interruption print the command that resumes.

    The notes are printed once everything is checked, so that an error is printed alone.
    """
    from compatkit.training.checkpoints import status
    from compatkit.training.prepare import FitRequest, prepare
    from compatkit.training.run import run

    state, statistics = Path(plan.trainer.checkpoint or ""), plan.frozen.statistics
    try:
        with prepare(FitRequest(plan.trainer, plan.tasks, plan.regularizers, frozen, statistics)) as prepared:
            if is_main_process():
                for note in (*notes, _where(state, status(state), plan.trainer.steps)):
                    news(note)
            return run(prepared)
    except (KeyboardInterrupt, SystemExit, EnvironmentFailure):
        if is_main_process() and (known := status(state)) is not None:
            news(f"{known.step:,} of {plan.trainer.steps:,} steps are saved. To resume: {again}")
        raise


def _where(state: Path, known: CheckpointStatus | None, steps: int) -> str:
    """Return whether a run begins, resumes from a checkpoint or is finished, with the checkpoint's path."""
    if known is None:
        return f"Saving checkpoints to {state}"
    return f"The run {'is finished' if known.ended else f'resumes after step {known.step:,} of {steps:,}'}: {state}"


def _look(plan: Recipe, frozen: Frozen, options: TrainOptions) -> None:
    """Show the plan of the run, or with ``--profile`` where the time goes."""
    frozen_parts: dict[str, Any] = {"frozen": frozen, "frozen_statistics": plan.frozen.statistics}
    with offline(unless=options.download):
        shown = (
            plan.trainer.explain(plan.tasks, plan.regularizers, **frozen_parts)
            if options.profile is None
            else plan.trainer.profile(plan.tasks, plan.regularizers, steps=options.profile, **frozen_parts)
        )
    if is_main_process():
        emit(shown.to_json()) if options.json else click.echo(str(shown))


def _announce(plan: Recipe) -> None:
    """Print what is about to run."""
    for task in plan.tasks:
        data = task.data
        news(
            f"{task.name}: {task.model} cut at {task.cut}, {len(data.train):,} training images of {data.name} in "
            f"{len(data.classes)} classes{_left_out(data)}"
        )
    notes = [note for pair in combinations(plan.tasks, 2) if (note := _classes_apart(*pair))]
    for note in notes[:NOTES]:
        news(note)
    if len(notes) > NOTES:
        news(f"{len(notes) - NOTES:,} more pairs of tasks share some of their classes only")
    methods = ", ".join(use.as_ for use in plan.regularizers) or "none"
    frozen = ", ".join(f"{word} {reference}" for word, reference in plan.frozen_references.items())
    against = f", against the frozen {frozen}" if frozen else ""
    news(f"{plan.trainer.steps:,} steps of each task, regularizers: {methods}{against}")


def _left_out(data: DataSet) -> str:
    """Return how many damaged images are left out; both splits count those of a source that is not divided."""
    counts = {"damaged": data.train.damaged, "damaged test": data.test.damaged}
    if data.train.damaged == data.test.damaged:
        del counts["damaged test"]
    shown = [f"{count:,} {what} image{'s' * (count != 1)}" for what, count in counts.items() if count]
    return f"; left out: {', '.join(shown)}" if shown else ""


def _classes_apart(first: Task, second: Task) -> str:
    """Return which classes only one of two tasks has, if they share others: probably a name is misspelt."""
    from compatkit.contracts.labels import common, first_names

    names = (first.data.classes, second.data.classes)
    pairs = common(*names)
    if not pairs or len(pairs) == len(names[0]) == len(names[1]):
        return ""
    alone = []
    for task, classes, shared in zip((first, second), names, zip(*pairs, strict=True), strict=True):
        if others := [label for index, label in enumerate(classes) if index not in shared]:
            alone.append(f"only {task.name} has {first_names(others)}")
    return (
        f"{first.name} and {second.name} share {len(pairs)} classes: {'; '.join(alone)}. The same class needs the same "
        "name (classes.txt renames those of a folder)"
    )


def _check_checkpoint(path: Any, folder: Path | None) -> None:
    """Raise for a checkpoint that cannot be written later, or that is not one."""
    file = Path(path).absolute()
    if file.is_dir():
        raise UsageError(f"The checkpoint {path} is a folder; name a file in it.", subject=file)
    if folder is None:
        check_folder(file.parent, f"The checkpoint {path}")
    else:
        above = next(parent for parent in file.parents if parent.exists())
        check_folder(above, f"The run's folder {folder} (--out names another)")
    if file.exists():
        from compatkit.experiments.recipes import check_tensor_file

        check_tensor_file(file, "The checkpoint")


def _check_versions(root: Path, plan: Recipe, version: str | None, images: PolicyData) -> list[str]:
    """Check parts that are published already, before anything is trained.

    Returns:
        The version step that they will take, and the policies that bind them.

    Raises:
        PolicyDataMissing: They could not be published, because a policy's images are not available.
    """
    from compatkit.components.images import policy_images
    from compatkit.registry.layout import MARKER
    from compatkit.registry.names import Version
    from compatkit.registry.store import Store

    if not (root / MARKER).exists():
        return []
    store, published, notes = Store.open(root), [], list[str]()
    at_hand = (*(task.data for task in plan.tasks), *images)
    for task, kind in product(plan.tasks, ("extractor", "head")):
        name = f"{plan.prefix}/{task.name}.{kind}"
        latest, revision = store.references.latest(name), store.policies.of(name)
        if latest is None:
            continue
        published.append(f"{name}@{latest}")
        policy = None if revision is None else revision.policy
        if policy is None or policy.data is None or not policy.concerns(kind):
            continue
        if policy.across_major or version is None or Version.parse(version).major == latest.major:
            policy_images(policy.data, at_hand)
            subject = "" if policy.scope == name else f"{name}: "
            notes.append(f"{subject}the policy {policy}")
    if published and version is None:
        notes.append(
            f"{', '.join(published)} {'is' if len(published) == 1 else 'are'} published already. Other weights take "
            "the next MAJOR number; or a MINOR one, if trained against the same frozen heads or measured by a policy. "
            "--prefix keeps runs apart."
        )
    return notes
