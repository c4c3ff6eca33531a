"""``compatkit rank``: score extractors for a data set before any training."""

from __future__ import annotations

import click

from compatkit.cli.images import WAYS, load_data_set
from compatkit.cli.options import DataAsked, batch_size_option, command, data_options, signature_options
from compatkit.cli.output import emit, progress
from compatkit.cli.roots import registry


class RankAsked(DataAsked):
    """Arguments and options of ``rank``."""

    extractors: tuple[str, ...]
    name: str
    scores: tuple[str, ...]
    examples: int
    controls: bool
    seed: int
    batch_size: int
    device: str


@command(
    "rank",
    RankAsked,
    help="Score EXTRACTORS for a data set before any training: LogME, H-score, LEEP, NCE and the theory of transfer, "
    "with permuted labels beside, their agreement, and the accuracy that was measured.",
)
@click.argument("extractors", nargs=-1, required=True)
@click.option("--data", "name", required=True, metavar="TARGET", help="Target data set by name or path.")
@click.option(
    "--score",
    "scores",
    multiple=True,
    metavar="METRIC",
    help="A metric whose first figure is a score; may be repeated. Default: all five.",
)
@click.option(
    "--examples",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    help="Most training images of the target, balanced over classes.",
)
@click.option(
    "--controls", is_flag=True, help="Also score the extractors with random weights of equal norms."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of samples and controls."
)
@batch_size_option
@click.option("--device", default="cpu", show_default=True, help="Device: cpu, cuda, ...")
@data_options
@signature_options
def rank_command(context: click.Context, asked: RankAsked) -> None:
    """Score, and print the table."""
    from compatkit.components.images import images_again
    from compatkit.components.ranking import SCORES, rank

    held = registry(context)
    target = load_data_set(asked.name, asked.data_root, asked.download)
    with progress("rank") as report:
        found = rank(
            held,
            asked.extractors,
            target,
            scores=asked.scores or SCORES,
            sources=lambda reference: images_again(
                held.store,
                [held.store.resolve(reference)],
                WAYS,
                root=asked.data_root,
                download=asked.download,
            )[reference],
            progress=report,
            **asked.only("examples", "controls", "seed", "batch_size", "device"),
        )
    if asked.machine:
        emit(found.to_json())
        return
    click.echo(str(found))
