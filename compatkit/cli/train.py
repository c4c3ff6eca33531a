"""``compatkit train RECIPE``: from a TOML file to published parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import (
    about,
    about_options,
    data_options,
    given,
    json_option,
    registry_option,
    sign_option,
)
from compatkit.cli.outcome import found_in, show_outcomes, to_json
from compatkit.cli.output import columns, emit, news, next_step, progress, speaks
from compatkit.cli.roots import check_folder, destination, publishing, registry
from compatkit.cli.signing import chosen_key, sign_published
from compatkit.cli.weights import offline
from compatkit.errors import DataError, EnvironmentFailure, PolicyBroken, UsageError
from compatkit.registry.names import Version

if TYPE_CHECKING:
    from compatkit.promises import Given
    from compatkit.recipes import Recipe
    from compatkit.registry.manifest import About
    from compatkit.training.beginning import Frozen
    from compatkit.training.fit import Fit
    from compatkit.training.task import Task


@click.command(
    "train",
    help="Train the tasks of RECIPE, a TOML file, and publish their parts. Examples are in examples/.",
)
@click.argument("recipe", type=click.Path())
@click.option("--seed", type=click.IntRange(0), help="In place of the recipe's.")
@click.option("--steps", type=click.IntRange(1), help="Steps of each task, in place of the recipe's.")
@click.option(
    "--checkpoint",
    type=click.Path(),
    metavar="FILE",
    help="Keep the state in this file, and go on from it if it exists.",
)
@click.option(
    "--scalars", type=click.Path(), metavar="FOLDER", help="Write TensorBoard's event files into this folder."
)
@click.option("--prefix", help="Publish under this prefix in place of the recipe's.")
@sign_option
@click.option(
    "--version", metavar="X.Y.Z", help="Number of all parts; else each takes the least step it needs."
)
@click.option(
    "--major", is_flag=True, help="Each part takes its next MAJOR number: a break, which policies allow."
)
@click.option(
    "--dry-run", is_flag=True, help="Train and show what policies say of each part; publish nothing."
)
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
@about_options
@data_options
@registry_option
@json_option
@click.pass_context
def train_command(
    context: click.Context,
    recipe: str,
    seed: int | None,
    steps: int | None,
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
    from compatkit.recipes import read

    if version is not None:
        Version.parse(version)
        if major:
            raise UsageError("Give --version or --major, not both.")

    first = speaks()
    if download and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "--download is for one process: several would write the same files. Fetch the data sets first, for example "
            "with `compatkit train RECIPE --steps 1 --dry-run --download`."
        )
    root, key = (destination(context), chosen_key(context)) if first else (Path(), None)

    def start(*words: Any, **settings: Any) -> Task:
        return registry(context).task(*words, **settings)

    overrides = {"seed": seed, "steps": steps, "checkpoint": checkpoint, "scalars": scalars}
    try:
        plan = read(recipe, root=data_root, download=download, prefix=prefix, start=start, **overrides)
    except DataError as error:
        if not isinstance(error.subject, str):  # the name of a data set that is not at hand
            raise
        raise DataError(f"{error} Here: --data-root DIR, --download.", subject=error.subject) from error
    frozen = registry(context).frozen(**plan.against) if plan.against else None
    if explain or profile is not None:
        _look(plan, frozen, download, machine, profile)
        return
    images = (found_in(data_root, download),)
    if first:
        _check_checkpoint(plan.trainer.checkpoint)
        if not major:
            _check_policies(root, plan, version, images)
        _announce(plan)
    try:
        with offline(unless=download):
            fit = plan.trainer.fit(
                plan.tasks, plan.regularizers, frozen=frozen, frozen_statistics=plan.frozen_statistics
            )
    except KeyboardInterrupt:
        if plan.trainer.checkpoint is not None and Path(plan.trainer.checkpoint).exists():
            news(f"The same command goes on from the checkpoint {plan.trainer.checkpoint}.")
        raise
    if not first:
        return
    if plan.trainer.ema is not None:
        fit = fit.averaged()
        news("What is published are the moving averages of the weights, as the recipe's ema asks.")
    if dry_run:
        context.exit(_rehearse(root, fit, plan, version, major, images, machine))
    parts = _publish(root, fit, plan, about(context, plan.about), version, major, images)
    signed = sign_published(registry(context), parts.values(), key)
    last = {row["task"]: row["losses"] for row in fit.history}
    if machine:
        measured = {"evaluations": fit.evaluations} if fit.evaluations else {}
        emit({"registry": str(root), "parts": parts, **signed, "losses": last, **measured, "plan": fit.plan})
        return
    _print_losses(last)
    _print_evaluations(fit)
    for reference in parts.values():
        click.echo(f"published {reference}{' and signed it' if signed else ''}")
    data = ("--data-root", data_root) if data_root else ()
    globs = f"{plan.prefix}/*.extractor", f"{plan.prefix}/*.head"
    next_step(
        "compatkit",
        *given(context).words,
        "matrix",
        *globs,
        "--recipe",
        recipe,
        *data,
        "--html",
        "matrix.html",
    )


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


def _check_checkpoint(path: Any) -> None:
    """Refuse a checkpoint that could not be written when it is due, or that is none."""
    if path is None:
        return
    file = Path(path).absolute()
    if file.is_dir():
        raise UsageError(f"The checkpoint {path} is a folder; name a file in it.", subject=file)
    check_folder(file.parent, f"The checkpoint {path}")
    if file.exists():
        from compatkit.recipes import check_tensor_file

        check_tensor_file(file, "The checkpoint")


def _check_policies(root: Path, plan: Recipe, version: str | None, images: Given) -> None:
    """Refuse to train what could not be published because the images that decide are not at hand."""
    from compatkit.promises import images as deciding
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


def _rehearse(
    root: Path, fit: Fit, plan: Recipe, version: str | None, major: bool, images: Given, machine: bool
) -> int:
    """Show what policies say of the parts; return the exit code."""
    with progress("policies") as report:
        outcomes = publishing(root).rehearse(
            fit, prefix=plan.prefix, version=version, major=major, data=images, progress=report
        )
    if machine:
        emit({"registry": str(root), "outcomes": to_json(outcomes), "plan": fit.plan})
    else:
        show_outcomes(outcomes)
        click.echo("nothing was published")
    return 0 if all(one.passed for one in outcomes.values()) else 1


def _publish(
    root: Path, fit: Fit, plan: Recipe, said: About, version: str | None, major: bool, images: Given
) -> dict[str, str]:
    kept = plan.trainer.checkpoint
    state = (
        f"The trained state is in the checkpoint {kept}: the same command goes on from it."
        if kept is not None
        else "With --checkpoint FILE a later run would not have to train again."
    )
    try:
        with progress("policies") as report:
            return publishing(root).publish(
                fit,
                prefix=plan.prefix,
                version=version,
                major=major,
                about=said,
                data=images,
                progress=report,
            )
    except (EnvironmentFailure, PolicyBroken) as error:
        raise type(error)(f"{error} {state}", subject=error.subject) from error


def _print_losses(last: Mapping[str, Mapping[str, float]]) -> None:
    """Print the last losses of each task, one column a loss."""
    names = list(dict.fromkeys(name for losses in last.values() for name in losses))
    table = [("task", *(name.replace("task", "target", 1) if name == "task" else name for name in names))]
    for task, losses in last.items():
        table.append((task, *(f"{losses[name]:.3f}" if name in losses else "" for name in names)))
    columns(table, right=range(1, len(names) + 1))


def _print_evaluations(fit: Fit) -> None:
    """Print what was measured last of each network, and where early stopping ended the run."""
    if not fit.evaluations:
        return
    last = {(row["task"], row["weights"]): row for row in fit.evaluations}
    table = [("task", "on", "weights", "step", "loss", "accuracy")]
    for row in last.values():
        words = (row["task"], row["on"], row["weights"], str(row["step"]))
        table.append((*words, f"{row['loss']:.3f}", f"{row['accuracy']:.3f}"))
    columns(table, right=range(3, 6))
    if "stopped" in fit.run:
        stopped = fit.run["stopped"]
        click.echo(f"ended after {stopped['steps']:,} steps, weights of step {stopped['weights_of_step']:,}")
