"""``compatkit train RECIPE``: from a TOML file to published parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import data_options, given, json_option, registry_option, sign_option
from compatkit.cli.output import columns, emit, news, next_step
from compatkit.cli.roots import check_folder, destination, publishing, registry
from compatkit.cli.signing import chosen_key, sign_published
from compatkit.cli.weights import offline
from compatkit.errors import DataError, EnvironmentFailure, UsageError

if TYPE_CHECKING:
    from compatkit.recipes import Recipe
    from compatkit.training.fit import Fit


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
@click.option("--prefix", help="Publish under this prefix in place of the recipe's.")
@sign_option
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
    prefix: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Train and publish; the registry is tried first, so that nothing is trained in vain."""
    from compatkit.recipes import read

    root, key = destination(context), chosen_key(context)
    overrides = {"seed": seed, "steps": steps, "checkpoint": checkpoint, "prefix": prefix}
    try:
        plan = read(recipe, root=data_root, download=download, **overrides)
    except DataError as error:
        if not isinstance(error.subject, str):  # the name of a data set that is not at hand
            raise
        raise DataError(f"{error} Here: --data-root DIR, --download.", subject=error.subject) from error
    _check_checkpoint(plan.trainer.checkpoint)
    frozen = registry(context).auxiliary_heads(plan.frozen_heads) if plan.frozen_heads else None
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
    parts = _publish(root, fit, plan)
    signed = sign_published(registry(context), parts.values(), key)
    last = {row["task"]: row["losses"] for row in fit.history}
    if machine:
        emit({"registry": str(root), "parts": parts, "signed": signed, "losses": last, "plan": fit.plan})
        return
    _print_losses(last)
    for reference in parts.values():
        click.echo(f"published {reference}{' and signed it' if signed else ''}")
    where = ("--registry", named) if (named := given(context).registry) else ()
    data = ("--data-root", data_root) if data_root else ()
    globs = f"{plan.prefix}/*.extractor", f"{plan.prefix}/*.head"
    next_step("compatkit", *where, "matrix", *globs, "--recipe", recipe, *data, "--html", "matrix.html")


def _announce(plan: Recipe) -> None:
    """Say what is about to run, in words that a person can compare with the recipe."""
    for task in plan.tasks:
        data = task.data
        news(
            f"{task.name}: {task.backbone} cut at {task.split}, {len(data.train):,} training images of {data.name} in "
            f"{len(data.classes)} classes"
        )
    methods = ", ".join(use.as_ for use in plan.regularizers) or "none"
    against = f", against the frozen heads {plan.frozen_heads}" if plan.frozen_heads else ""
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


def _publish(root: Path, fit: Fit, plan: Recipe) -> dict[str, str]:
    try:
        return publishing(root).publish(fit, prefix=plan.prefix)
    except EnvironmentFailure as error:
        kept = plan.trainer.checkpoint
        raise EnvironmentFailure(
            f"{error} "
            + (
                f"The trained state is in the checkpoint {kept}: the same command goes on from it."
                if kept is not None
                else "With --checkpoint FILE a later run would not have to train again."
            ),
            subject=error.subject,
        ) from error


def _print_losses(last: Mapping[str, Mapping[str, float]]) -> None:
    """Print the last losses of each task, one column a loss."""
    names = list(dict.fromkeys(name for losses in last.values() for name in losses))
    table = [("task", *(name.replace("task", "target", 1) if name == "task" else name for name in names))]
    for task, losses in last.items():
        table.append((task, *(f"{losses[name]:.3f}" if name in losses else "" for name in names)))
    columns(table, right=range(1, len(names) + 1))
