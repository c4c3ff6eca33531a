"""``compatkit train RECIPE``: from a TOML file to published parts."""

from __future__ import annotations

from typing import Any

import click

from compatkit.cli.shared import data_options, emit, json_option, registry


@click.command("train", help="Train the tasks of RECIPE together and publish their parts.")
@click.argument("recipe", type=click.Path())
@click.option("--seed", type=int, help="In place of the recipe's.")
@click.option("--steps", type=int, help="In place of the recipe's.")
@click.option("--checkpoint", type=click.Path(), help="Keep the state in this file, and go on from it.")
@click.option("--prefix", help="Publish under this prefix in place of the recipe's.")
@data_options
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
    """Train and publish; the registry is opened first, so that nothing is trained in vain."""
    from compatkit.recipes import read

    held = registry(context, create=True)
    plan = read(recipe, root=data_root, download=download, seed=seed, steps=steps, checkpoint=checkpoint)
    frozen = held.auxiliary_heads(plan.frozen_heads) if plan.frozen_heads else None
    fit = plan.trainer.fit(
        plan.tasks,
        plan.regularizers,
        frozen=frozen,
        frozen_statistics=plan.frozen_statistics,  # type: ignore[arg-type]
    )
    parts = held.publish(fit, prefix=prefix or plan.prefix)
    last = {row["task"]: row["losses"] for row in fit.history}
    if machine:
        emit({"parts": parts, "losses": last, "plan": fit.plan})
        return
    for task, losses in last.items():
        click.echo(f"{task}: {_losses(losses)}")
    for reference in parts.values():
        click.echo(f"published {reference}")
    name = prefix or plan.prefix
    click.echo(f"next: compatkit matrix '{name}/*.extractor' '{name}/*.head' --recipe {recipe}")


def _losses(losses: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
