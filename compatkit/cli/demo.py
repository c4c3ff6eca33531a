"""``compatkit demo``: the idea in one to three minutes."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import Options, command, option
from compatkit.cli.output import clean, columns, emit, news, next_step, paragraph, print_rich


class DemoOptions(Options):
    """Arguments and options of ``demo``."""

    out: Path = option("Folder to write to.", default="compatkit-demo", metavar="DIR")
    steps: int | None = option("Steps per network; default: 500, as for the figures in the docs.", min=1)
    seed: int = option("Seed of everything random.", min=0, default=0)


@command("demo", DemoOptions, registry=False)
def demo_command(options: DemoOptions) -> int | None:
    """Train parts that fit and parts that do not, recombine them, show the matrix.

    Examples:
        # train six small networks and exchange their parts
        compatkit demo
        # in another folder, from another seed
        compatkit demo --out demo --seed 1
    """
    from compatkit.experiments.demo import STEPS, run

    demo = run(options.out, steps=options.steps or STEPS, seed=options.seed, say=news)
    if options.json:
        shown = {"recombined": demo.recombined, "own": demo.own, "effect_shows": demo.shows}
        return emit({**shown, "files": dict(demo.files)})
    print_rich(demo.matrix)
    click.echo()
    paragraph("Mean accuracy of the two networks of each arm, as trained and with their heads exchanged:")
    table = [("arm", "as trained", "recombined")]
    table += [(arm, f"{demo.own[arm]:.3f}", f"{value:.3f}") for arm, value in demo.recombined.items()]
    columns(table, right=(1, 2))
    click.echo()
    paragraph(demo.finding)
    click.echo("\nwritten:")
    for name, path in demo.files.items():
        click.echo(f"  {name:<8}  {clean(str(path))}")
    next_step("--registry", demo.files["registry"], "ls", registry=False)
