"""``compatkit demo``: the idea in under two minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Asked, PathType, command
from compatkit.cli.output import clean, columns, emit, news, next_step, paragraph, print_rich

if TYPE_CHECKING:
    from compatkit.experiments.demo import Demo


class DemoAsked(Asked):
    """Arguments and options of ``demo``."""

    out: str
    steps: int | None
    seed: int
    rotation: bool


@command(
    "demo",
    DemoAsked,
    help="Train parts that fit and parts that do not, recombine them, show the matrix.",
    registry=False,
)
@click.option(
    "--out", default="compatkit-demo", show_default=True, type=PathType(), help="Folder to write to."
)
@click.option(
    "--steps", type=click.IntRange(1), help="Steps per network; default: 500, as for the figures in the docs."
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of everything random."
)
@click.option("--rotation", is_flag=True, help="Add an arm with rotation prediction (slower).")
def demo_command(context: click.Context, asked: DemoAsked) -> None:
    """Run the demo and state whether the effect shows."""
    from compatkit.experiments.demo import STEPS, run

    found = run(asked.out, steps=asked.steps or STEPS, seed=asked.seed, rotation=asked.rotation, say=news)
    if asked.machine:
        files = {name: str(path) for name, path in found.files.items()}
        emit({"recombined": found.recombined, "own": found.own, "effect_shows": found.shows, "files": files})
        return
    print_rich(found.matrix)
    _conclude(found)


def _conclude(found: Demo) -> None:
    click.echo()
    paragraph("Mean accuracy of the two networks of each arm, as trained and with their heads exchanged:")
    table = [("arm", "as trained", "recombined")]
    table += [(arm, f"{found.own[arm]:.3f}", f"{value:.3f}") for arm, value in found.recombined.items()]
    columns(table, right=(1, 2))
    click.echo()
    if found.shows:
        best = list(found.recombined)[-1]
        paragraph(
            f"Every shape matches in all of them, and yet parts of independent networks do not fit "
            f"({found.recombined['none']:.2f}). Trained to fit ({best}) they reach {found.recombined[best]:.2f} of the "
            f"{found.own[best]:.2f} that networks have with their own heads, without a step of fine-tuning."
        )
    else:
        paragraph(
            "The effect does NOT show on this run: each arm should recombine better than the one before. Try more "
            "--steps, or another --seed."
        )
    click.echo("\nwritten:")
    for name, path in found.files.items():
        click.echo(f"  {name:<8}  {clean(str(path))}")
    next_step("compatkit", "--registry", str(found.files["registry"]), "ls")
