"""``compatkit rank``: score extractors for a data set before any training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.images import WAYS, load_data_set
from compatkit.cli.options import (
    NamedDataAsked,
    batch_size_option,
    command,
    named_data_options,
    signature_options,
)
from compatkit.cli.output import emit, progress
from compatkit.cli.roots import registry
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet


class RankAsked(NamedDataAsked):
    """Arguments and options of ``rank``."""

    extractors: tuple[str, ...]
    name: str
    scores: tuple[str, ...]
    examples: int
    controls: bool
    seed: int
    batch_size: int
    device: str
    versions: bool
    by: str | None
    alias: str | None


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
@click.option(
    "--versions", is_flag=True, help="Rank all versions of the names that match, not the latest ones."
)
@click.option(
    "--by", metavar="SCORE", help="Score that says which is best, or 'measured' accuracy; default: the first."
)
@click.option(
    "--alias", metavar="ALIAS", help="Point this alias of the component to its best version, see --by."
)
@batch_size_option
@click.option("--device", default="cpu", show_default=True, help="Device: cpu, cuda, ...")
@named_data_options
@signature_options
def rank_command(context: click.Context, asked: RankAsked) -> None:
    """Score, and print the table."""
    from compatkit.components.images import images_again
    from compatkit.components.scoring import SCORES, rank

    held = registry(context)
    target = load_data_set(asked.name, asked.data_root, asked.download, asked.damaged)
    chosen = asked.extractors
    names = [place.name for place in held.store.select(chosen, "extractor")]
    if asked.versions:
        chosen = tuple(f"{name}@{version}" for name in names for version in held.versions(name))
    if asked.alias is not None and len(set(names)) > 1:
        raise UsageError(
            f"--alias names a version of one component; these are {', '.join(sorted(set(names)))}. Rank one of them.",
            subject="alias",
        )
    loaded: dict[str, DataSet] = {}

    def source_of(reference: str) -> DataSet:
        """Load what an extractor was trained on, each set once."""
        trained = str(held.store.manifest(reference).training.get("data"))
        if trained not in loaded:
            places = [held.store.resolve(reference)]
            again = images_again(held.store, places, WAYS, root=asked.data_root, download=asked.download)
            loaded[trained] = again[reference]
        return loaded[trained]

    with progress("rank") as report:
        found = rank(
            held,
            chosen,
            target,
            scores=asked.scores or SCORES,
            sources=source_of,
            progress=report,
            **asked.only("examples", "controls", "seed", "batch_size", "device"),
        )
    best = None
    if asked.by is not None or asked.alias is not None:
        best = found.best(asked.by or found.rows[0].score)
    if best is not None and asked.alias is not None:
        name, _, version = best.partition("@")
        held.alias(name, asked.alias, version)
    if asked.machine:
        emit(found.to_json() | ({"best": best} if best is not None else {}))
        return
    click.echo(str(found))
    if best is not None:
        click.echo(f"best: {best}" + (f", now :{asked.alias}" if asked.alias is not None else ""))
