"""``compatkit demo``: the idea in under two minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, PathType, command, option
from compatkit.cli.output import clean, columns, emit, news, next_step, paragraph, print_rich

if TYPE_CHECKING:
    from compatkit.experiments.demo import Demo


class DemoOptions(Options):
    """Arguments and options of ``demo``."""

    out: str = option("Folder to write to.", type=PathType(), default="compatkit-demo")
    steps: int | None = option("Steps per network; default: 500, as for the figures in the docs.", min=1)
    seed: int = option("Seed of everything random.", min=0, default=0)
    rotation: bool = option("Add an arm with rotation prediction (slower).")


@command(
    "demo",
    DemoOptions,
    help="Train parts that fit and parts that do not, recombine them, show the matrix.",
    registry=False,
)
def demo_command(context: click.Context, options: DemoOptions) -> None:
    """Run the demo and state whether the effect shows."""
    from compatkit.experiments.demo import STEPS, run

    demo = run(
        options.out, steps=options.steps or STEPS, seed=options.seed, rotation=options.rotation, say=news
    )
    if options.json:
        files = {name: str(path) for name, path in demo.files.items()}
        emit({"recombined": demo.recombined, "own": demo.own, "effect_shows": demo.shows, "files": files})
        return
    print_rich(demo.matrix)
    _conclude(demo)


def _conclude(demo: Demo) -> None:
    click.echo()
    paragraph("Mean accuracy of the two networks of each arm, as trained and with their heads exchanged:")
    table = [("arm", "as trained", "recombined")]
    table += [(arm, f"{demo.own[arm]:.3f}", f"{value:.3f}") for arm, value in demo.recombined.items()]
    columns(table, right=(1, 2))
    click.echo()
    if demo.shows:
        best = list(demo.recombined)[-1]
        paragraph(
            f"Every shape matches in all of them, and yet parts of independent networks do not fit "
            f"({demo.recombined['none']:.2f}). Trained to fit ({best}) they reach {demo.recombined[best]:.2f} of the "
            f"{demo.own[best]:.2f} that networks have with their own heads, without a step of fine-tuning."
        )
    else:
        paragraph(
            "The effect does NOT show on this run: each arm should recombine better than the one before. Try more "
            "--steps, or another --seed."
        )
    click.echo("\nwritten:")
    for name, path in demo.files.items():
        click.echo(f"  {name:<8}  {clean(str(path))}")
    next_step("compatkit", "--registry", str(demo.files["registry"]), "ls")
