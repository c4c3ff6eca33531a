"""``compatkit demo``: the idea in under two minutes."""

from __future__ import annotations

import click

from compatkit.cli.shared import emit, json_option


@click.command("demo", help="Train parts that fit and parts that do not, recombine them, show the matrix.")
@click.option(
    "--out", default="compatkit-demo", show_default=True, type=click.Path(), help="Folder to write to."
)
@click.option("--steps", default=200, show_default=True, type=click.IntRange(1), help="Steps a network.")
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--rotation", is_flag=True, help="Add an arm with rotation prediction (slower).")
@json_option
def demo_command(out: str, steps: int, seed: int, rotation: bool, machine: bool) -> None:
    """Run the demo and say plainly whether the effect shows."""
    from compatkit.demo import run

    found = run(
        out,
        steps=steps,
        seed=seed,
        rotation=rotation,
        say=(lambda text: None) if machine else click.echo,
        progress=False if machine else None,
    )
    if machine:
        files = {name: str(path) for name, path in found.files.items()}
        emit({"recombined": found.recombined, "own": found.own, "effect_shows": found.shows, "files": files})
        return
    from rich.console import Console
    from rich.table import Table

    Console().print(found.matrix)
    table = Table(title="Mean accuracy of the two networks of each arm", title_justify="left", box=None)
    for column in ("arm", "as trained", "recombined"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, value in found.recombined.items():
        table.add_row(arm, f"{found.own[arm]:.3f}", f"{value:.3f}")
    Console().print(table)
    if found.shows:
        click.echo("Parts of independent networks do not fit; trained for it, they do.")
    else:
        click.echo(
            "The expected order of the arms does NOT show on this run; try more steps or another seed."
        )
    for name, path in found.files.items():
        click.echo(f"{name:<9} {path}")
