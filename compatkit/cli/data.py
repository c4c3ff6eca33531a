"""``compatkit data show NAME``: what a data set holds, and what is wrong with it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from compatkit.cli.images import DataOptions
from compatkit.cli.options import argument, command, group, option
from compatkit.cli.output import clean, columns, emit, first, paragraph, progress, warn
from compatkit.reports.writing import write

if TYPE_CHECKING:
    from compatkit.data.split import Split
    from compatkit.data.summary import Copies, DataSummary, Range
    from compatkit.foundation.bars import Progress

ROWS, COLUMNS, SIDE = 24, 8, 96
"""Contact sheet: limits of classes and of images of each, and pixels a side."""
LETTERS = 15
"""Characters of a class name on the sheet."""
SHOWN = 10
"""Damaged images named in a line."""

data_command = group(
    "data",
    """Look at data sets.

    Examples:
        # what a folder of photos holds
        compatkit data show photos/
    """,
)


class DataShowOptions(DataOptions):
    """Arguments and options of ``data show``."""

    name: str = argument()
    sheet: Path | None = option("Draw some training images of each class as PNG.", is_output=True)


@command("show", DataShowOptions, group=data_command, registry=False)
def show(options: DataShowOptions) -> int | None:
    """Decode every image of the data set NAME; show classes, sizes, damaged files and copies.

    NAME is a name, path or address.

    Examples:
        # count photos by class, and draw some of each
        compatkit data show photos/ --sheet photos.png
        # look at a data set by name
        compatkit data show mnist --data-root packs
    """
    from compatkit.data.summary import summarize

    with progress("data") as report:
        splits, others = _splits(options, report)
        result = attrs.evolve(summarize(splits, report), others=others)
    if options.sheet is not None:
        write(options.sheet, sheet(splits[0], set(result.parts[0].damaged)))
    if options.json:
        return emit(attrs.asdict(result))
    _print(result)


def sheet(split: Split, damaged: set[str]) -> bytes:
    """Return a contact sheet as PNG: for each class whole images, evenly drawn.

    Args:
        split: Images and labels.
        damaged: Names of images that cannot be decoded.
    """
    import numpy as np
    from PIL import ImageOps

    from compatkit.reports.pictures import image_grid
    from compatkit.reports.wording import clip

    rows, shown = {}, split.converted("RGB")
    for label in np.flatnonzero(split.counts)[:ROWS].tolist():
        indices = np.flatnonzero(split.labels == label).tolist()
        sound = [index for index in indices if split.name_of(index) not in damaged]
        images = np.full((COLUMNS, SIDE, SIDE, 3), 255, dtype=np.uint8)
        for column, index in enumerate(sound[:: max(1, len(sound) // COLUMNS)][:COLUMNS]):
            images[column] = np.asarray(ImageOps.pad(shown.image(index), (SIDE, SIDE), color="white"))
        name = f"{label} {clip(split.classes[label], LETTERS)}"
        rows[name] = images.transpose(0, 3, 1, 2)
    return image_grid(rows, low=0, high=255)


def _splits(options: DataShowOptions, report: Progress) -> tuple[list[Split], dict[str, int]]:
    """Return training and test images, or unlabeled images, and counts of unread files by kind."""
    from compatkit.data import load
    from compatkit.data.skipped import SkippedFilesWarning
    from compatkit.data.unlabeled import is_image_folder, is_unlabeled_pack, read_unlabeled

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if is_image_folder(options.name) or (
            options.name.endswith(".npz") and is_unlabeled_pack(options.name)
        ):
            splits = [read_unlabeled(options.name)]
        else:
            data = load(options.name, **options.load_arguments, progress=report)
            splits = [data.train, data.test]
    others: dict[str, int] = {}
    for warning in caught:
        if isinstance(warning.message, SkippedFilesWarning):
            others |= warning.message.counts
        else:
            warn(str(warning.message))
    return splits, others


def _print(summary: DataSummary) -> None:
    head = ("split", "images", "classes", "height", "width", "kinds", "damaged", "copies")
    table = [
        (
            part.name,
            f"{part.images:,}",
            f"{len(part.classes)}" if part.classes else "none known",
            _range(part.heights),
            _range(part.widths),
            ", ".join(f"{kind} {count:,}" for kind, count in part.kinds.items()),
            f"{len(part.damaged):,}",
            f"{part.copies.count:,}",
        )
        for part in summary.parts
    ]
    columns([head, *table], right=(1, 2, 6, 7))
    classes = summary.parts[0].classes
    if classes:
        click.echo()
        rows = [(label, *(f"{part.classes[label]:,}" for part in summary.parts)) for label in classes]
        names = [part.name for part in summary.parts]
        columns([("class", *names), *rows], right=range(1, len(names) + 1))
    for part in summary.parts:
        if part.damaged:
            click.echo()
            paragraph(
                f'{part.name}: damaged are {first(part.damaged, SHOWN)}. In a recipe, damaged = "skip" leaves them out.'
            )
        _print_copies(f"Within {part.name}", part.copies)
    if summary.shared is not None:
        _print_copies(f"In {summary.parts[1].name} and in {summary.parts[0].name}", summary.shared)
    if summary.others:
        kinds = first([f"{kind} {count:,}" for kind, count in summary.others.items()], SHOWN)
        click.echo()
        paragraph(f"Not read: {kinds}. Convert photos among these to JPEG or PNG to use them.")


def _print_copies(where: str, copies: Copies) -> None:
    if copies.count:
        other = f", {copies.relabeled:,} of them of another class" if copies.relabeled else ""
        copy = "1 copy" if copies.count == 1 else f"{copies.count:,} copies"
        click.echo(clean(f"\n{where}: {copy}{other}, such as"))
        for original, copied in copies.first:
            click.echo(clean(f"  {copied} of {original}"))


def _range(sides: Range | None) -> str:
    if sides is None:
        return ""
    low, median, high = sides
    return f"{low}" if low == high else f"{low} to {high}, median {median:g}"
