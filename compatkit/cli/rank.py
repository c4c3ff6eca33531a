"""``compatkit rank``: score extractors for a data set before any training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.images import WAYS, NamedDataOptions
from compatkit.cli.options import argument, batch_size_option, command, device_option, option
from compatkit.cli.output import emit, progress
from compatkit.cli.roots import SignatureOptions, open_registry
from compatkit.cli.tables import TableOptions
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet


class RankOptions(NamedDataOptions, TableOptions, SignatureOptions):
    """Arguments and options of ``rank``."""

    extractors: tuple[str, ...] = argument(required=True)
    name: str = option("Target data set by name or path.", "--data", metavar="TARGET")
    scores: tuple[str, ...] = option(
        "Metric to score by; may be repeated. Default: all.", "--score", metavar="METRIC"
    )
    examples: int = option("Limit of training images of the target, class-balanced.", min=2, default=1000)
    controls: bool = option("Also score the extractors with random weights of equal norms.")
    seed: int = option("Seed of samples and controls.", min=0, default=0)
    versions: bool = option("Rank all versions of the matching names, not only the latest.")
    by: str | None = option("Name the best by this score, or by 'measured' accuracy.", metavar="SCORE")
    alias: str | None = option(
        "Point this alias of the component to its best version (--by).", metavar="ALIAS"
    )
    batch_size: int = batch_size_option
    device: str = device_option


@command("rank", RankOptions)
def rank_command(options: RankOptions) -> int | None:
    """Score how well EXTRACTORS suit a data set before any training, and tell which one to take.

    Scores are LogME, H-score, LEEP, NCE and a transfer bound, with permuted labels as control, next to measured
    accuracies.

    Examples:
        # which extractor should transfer best to usps?
        compatkit rank 'digits/*.extractor' --data usps
        # name the best by one score
        compatkit rank 'zoo/*.extractor' --data photos/ --score logme --by logme
    """
    from compatkit.components.images import images_again
    from compatkit.components.scoring import SCORES

    registry = open_registry()
    target = options.load(options.name)
    chosen = options.extractors
    names = [reference.name for reference in registry.store.select(chosen, "extractor")]
    if options.versions:
        chosen = tuple(f"{name}@{version}" for name in names for version in registry.versions(name))
    if options.alias is not None and len(set(names)) > 1:
        text = f"--alias needs a single component, got {', '.join(sorted(set(names)))}."
        raise UsageError(text, subject="alias")
    loaded: dict[str, DataSet] = {}

    def source_of(reference: str) -> DataSet:
        """Load what an extractor was trained on, each set once."""
        trained = str(registry.store.manifest(reference).training.get("data"))
        if trained not in loaded:
            resolved = [registry.store.resolve(reference)]
            loaded[trained] = images_again(registry.store, resolved, WAYS, **options.load_arguments)[
                reference
            ]
        return loaded[trained]

    with progress("rank") as report:
        ranking = registry.rank(
            chosen,
            target,
            scores=options.scores or SCORES,
            sources=source_of,
            progress=report,
            **options.only("examples", "controls", "seed", "batch_size", "device"),
        )
    best = None
    if options.by is not None or options.alias is not None:
        best = ranking.best(options.by or ranking.rows[0].score)
    if best is not None and options.alias is not None:
        name, _, version = best.partition("@")
        registry.alias(name, options.alias, version)
    options.write_tables(ranking)
    if options.json:
        return emit(ranking.to_json() | ({"best": best} if best is not None else {}))
    click.echo(str(ranking))
    if best is not None:
        click.echo(f"best: {best}" + (f", now :{options.alias}" if options.alias is not None else ""))
