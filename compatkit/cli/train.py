"""``compatkit train RECIPE``: from a TOML file to published parts."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.options import data_options, given, json_option, registry_option
from compatkit.cli.outcome import found_in
from compatkit.cli.output import emit, news, speaks
from compatkit.cli.publish import Release, averaged, check_numbers, release_options
from compatkit.cli.roots import check_folder, destination, registry
from compatkit.cli.signing import chosen_key
from compatkit.cli.weights import offline
from compatkit.errors import DataError, EnvironmentFailure, UsageError
from compatkit.experiments.recipes import STATE, Started
from compatkit.registry.names import Version

if TYPE_CHECKING:
    from compatkit.components.promises import Given
    from compatkit.experiments.recipes import Recipe
    from compatkit.training.fit import Fit
    from compatkit.training.prepare import Frozen
    from compatkit.training.task import Task


@click.command(
    "train",
    help="Train the tasks of RECIPE, a TOML file, and publish their parts. Examples are in examples/. The state of the "
    "run is kept every other minute and when Ctrl-C or SIGTERM ends it: the same command then goes on.",
)
@click.argument("recipe", type=click.Path())
@click.option("--seed", type=click.IntRange(0), help="In place of the recipe's.")
@click.option("--steps", type=click.IntRange(1), help="Steps of each task, in place of the recipe's.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the run's state; else one next to the registry, ROOT-runs/RECIPE-..., which is emptied when the "
    "parts are published.",
)
@click.option(
    "--checkpoint",
    type=click.Path(),
    metavar="FILE",
    help="Keep the state in this file in place of a folder, and go on from it if it exists.",
)
@click.option(
    "--scalars", type=click.Path(), metavar="FOLDER", help="Write TensorBoard's event files into this folder."
)
@release_options
@click.option(
    "--explain",
    is_flag=True,
    help="Show the plan (tasks, owners of parameters, hooks, how steps execute), and train nothing.",
)
@click.option(
    "--profile",
    type=click.IntRange(1),
    metavar="STEPS",
    help="Show where the time of so many steps goes, and train nothing.",
)
@data_options
@registry_option
@json_option
@click.pass_context
def train_command(
    context: click.Context,
    recipe: str,
    seed: int | None,
    steps: int | None,
    out: Path | None,
    checkpoint: str | None,
    scalars: str | None,
    prefix: str | None,
    version: str | None,
    major: bool,
    dry_run: bool,
    explain: bool,
    profile: int | None,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Train and publish; registry and policies are looked at first, so that nothing is trained in vain."""
    check_numbers(version, major)
    if out is not None and checkpoint is not None:
        raise UsageError(
            "Give --out or --checkpoint, not both: the folder keeps the state in a file of its own."
        )
    first = speaks()
    if download and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "--download is for one process: several would write the same files. Fetch the data sets first, for example "
            "with `compatkit train RECIPE --steps 1 --dry-run --download`."
        )
    root, key = (destination(context), chosen_key(context)) if first else (Path("registry"), None)

    def start(*words: Any, **settings: Any) -> Task:
        return registry(context).task(*words, **settings)

    settings = {"seed": seed, "steps": steps, "checkpoint": checkpoint, "scalars": scalars}
    line = ("compatkit", *given(context).line)
    started = Started.of(
        recipe, root, data_root, settings=settings, prefix=prefix, about=given(context).about, command=line
    )
    try:
        plan = started.load(download, start)
    except DataError as error:
        if not isinstance(error.subject, str):  # the name of a data set that is not at hand
            raise
        raise DataError(f"{error} Here: --data-root DIR, --download.", subject=error.subject) from error
    frozen = registry(context).frozen(**plan.against) if plan.against else None
    if explain or profile is not None:
        _look(plan, frozen, download, machine, profile)
        return
    folder = None
    if plan.trainer.checkpoint is None:
        folder = started.beside() if out is None else out
        plan = attrs.evolve(plan, trainer=attrs.evolve(plan.trainer, checkpoint=folder / STATE))
    images = (found_in(data_root, download),)
    if first:
        _check_checkpoint(plan.trainer.checkpoint, folder)
        if not major:
            _check_policies(root, plan, version, images)
        _announce(plan)
        if version is None and not major:
            _announce_versions(root, plan)
    with started.kept(folder) if first and folder is not None else nullcontext(), offline(unless=download):
        fit = _fit(plan, frozen, started.again())
    if not first:
        return
    fit = averaged(fit)
    release = Release(context, root, plan, folder, out is not None, images, plan.about, version, major, key)
    if dry_run:
        context.exit(release.rehearse(fit, machine))
    release.publish(fit, started, machine)


def _fit(plan: Recipe, frozen: Frozen, again: str) -> Fit:
    """Train, from the state that is kept if there is one, and say how to go on after an end before the end."""
    from compatkit.training.checkpoints import status

    state = Path(plan.trainer.checkpoint or "")
    if speaks() and (known := status(state)) is not None:
        where = (
            "is trained" if known.ended else f"goes on after step {known.step:,} of {plan.trainer.steps:,}"
        )
        news(f"The run {where}: {state}")
    elif speaks():
        news(f"Saving checkpoints to {state}")
    try:
        return plan.trainer.fit(
            plan.tasks, plan.regularizers, frozen=frozen, frozen_statistics=plan.frozen_statistics
        )
    except (KeyboardInterrupt, SystemExit, EnvironmentFailure):
        if speaks() and (known := status(state)) is not None:
            news(f"{known.step:,} of {plan.trainer.steps:,} steps are kept. To go on: {again}")
        raise


def _look(plan: Recipe, frozen: Frozen, download: bool, machine: bool, steps: int | None) -> None:
    """Show the plan of the run, or where the time of ``steps`` of its steps goes."""
    given: dict[str, Any] = {"frozen": frozen, "frozen_statistics": plan.frozen_statistics}
    with offline(unless=download):
        shown = (
            plan.trainer.explain(plan.tasks, plan.regularizers, **given)
            if steps is None
            else plan.trainer.profile(plan.tasks, plan.regularizers, steps=steps, **given)
        )
    if not speaks():
        return
    if machine:
        emit(shown.to_json())
    else:
        click.echo(str(shown))


def _announce(plan: Recipe) -> None:
    """Say what is about to run, in words that a person can compare with the recipe."""
    for task in plan.tasks:
        data = task.data
        news(
            f"{task.name}: {task.backbone} cut at {task.split}, {len(data.train):,} training images of {data.name} in "
            f"{len(data.classes)} classes"
        )
    methods = ", ".join(use.as_ for use in plan.regularizers) or "none"
    against = (
        f", against the frozen {', '.join(f'{word} {one}' for word, one in plan.against.items())}"
        if plan.against
        else ""
    )
    news(f"{plan.trainer.steps:,} steps of each task, regularizers: {methods}{against}")


def _check_checkpoint(path: Any, folder: Path | None) -> None:
    """Refuse a checkpoint that could not be written when it is due, or that is none."""
    file = Path(path).absolute()
    if file.is_dir():
        raise UsageError(f"The checkpoint {path} is a folder; name a file in it.", subject=file)
    if folder is None:
        check_folder(file.parent, f"The checkpoint {path}")
    else:
        above = next(one for one in (file.parent, *file.parents) if one.exists())
        check_folder(above, f"The run's folder {folder} (--out names another)")
    if file.exists():
        from compatkit.experiments.recipes import check_tensor_file

        check_tensor_file(file, "The checkpoint")


def _announce_versions(root: Path, plan: Recipe) -> None:
    """Say which step of their versions parts will take that are there already, and why."""
    from compatkit.registry.layout import MARKER
    from compatkit.registry.store import Store

    if not (root / MARKER).exists():
        return
    held = Store.open(root).references
    names = [f"{plan.prefix}/{task.name}.{kind}" for task in plan.tasks for kind in ("extractor", "head")]
    latest = [f"{name}@{held.latest(name)}" for name in names if held.latest(name) is not None]
    if latest:
        news(
            f"{', '.join(latest)} {'is' if len(latest) == 1 else 'are'} there already. The same run gives the same "
            "versions. Other weights take the next MAJOR number, as nothing shows that parts which fitted the old ones "
            "fit them; they need no more than a MINOR one if they were trained against the same frozen heads, or if a "
            "policy measures them. --prefix keeps runs apart."
        )


def _check_policies(root: Path, plan: Recipe, version: str | None, images: Given) -> None:
    """Refuse to train what could not be published because the images that decide are not at hand."""
    from compatkit.components.promises import images as deciding
    from compatkit.registry.layout import MARKER
    from compatkit.registry.store import Store

    if not (root / MARKER).exists():
        return
    held = Store.open(root)
    given = (*(task.data for task in plan.tasks), *images)
    for task in plan.tasks:
        for kind in ("extractor", "head"):
            name = f"{plan.prefix}/{task.name}.{kind}"
            found = held.policies.of(name)
            latest = held.references.latest(name)
            if found is None or found.policy is None or latest is None or not found.policy.concerns(kind):
                continue
            same = version is None or Version.parse(version).major == latest.major
            if found.policy.data is not None and (same or found.policy.across_major):
                deciding(found.policy.data, given)
                news(f"{name}: the policy {found.policy}")
