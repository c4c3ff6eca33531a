"""Draw a ladder of bridges: agreement and accuracy of each rung over the seconds of its fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from compatkit.reports.drawing import BACKGROUND, COLORS, MARKS, MUTED_COLOR, TEXT_COLOR, png, printable
from compatkit.reports.wording import share, visible

if TYPE_CHECKING:
    from compatkit.contracts.evidence import Figure, Rung

MIN_SECONDS, MAX_SECONDS = 0.01, 1e9
"""Range of the time axis; faster and slower rungs are drawn at its ends."""


def draw(rungs: Sequence[Rung], title: str) -> bytes:
    """Return the picture as PNG; equal rungs give equal bytes.

    Args:
        rungs: Rungs in the order of the legend, at least one.
        title: Title above the picture.
    """
    from matplotlib.figure import Figure as Picture

    figure = Picture((5.2, 3.4), dpi=160, facecolor=BACKGROUND)
    axes = figure.add_axes((0.1, 0.15, 0.85, 0.75))
    axes.set_xscale("log")
    for number, rung in enumerate(rungs):
        color, seconds, chosen = (
            COLORS[number % len(COLORS)],
            min(MAX_SECONDS, max(MIN_SECONDS, rung.seconds)),
            ", chosen" * rung.chosen,
        )
        axes.plot([seconds] * 2, [rung.agreement.low, rung.agreement.high], color=color, linewidth=1)
        axes.plot(
            seconds,
            rung.agreement.accuracy,
            MARKS[number % len(MARKS)],
            color=color,
            markersize=8 if rung.chosen else 5,
            label=printable(f"{visible(rung.name)}{chosen}, {_images(rung)}"),
        )
        if rung.accuracy is not None:
            axes.plot(seconds, rung.accuracy.accuracy, "x", color=color, markersize=6)
    axes.plot([], [], "|", color=MUTED_COLOR, label="agreement with the head's own network, 95 % interval")
    axes.plot([], [], "x", color=MUTED_COLOR, label="accuracy on test images")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(ylim=(-0.03, 1.03))
    axes.set_xlabel("seconds to fit", color=MUTED_COLOR, fontsize=8)
    axes.set_ylabel("share of images", color=MUTED_COLOR, fontsize=8)
    axes.set_title(printable(title), loc="left", fontsize=8, color=TEXT_COLOR, parse_math=False)
    axes.tick_params(labelsize=7, colors=MUTED_COLOR)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    for text in legend.get_texts():
        text.set_parse_math(False)
    return png(figure, "Ladder of bridges", tight=True)


def rung_texts(rungs: Sequence[Rung]) -> list[tuple[str, str]]:
    """Return name and results of each rung.

    Args:
        rungs: Rungs of a ladder.
    """
    return [
        (
            f"{visible(rung.name)}{', chosen' * rung.chosen}",
            f"agreement {_with_interval(rung.agreement)}"
            + ("" if rung.accuracy is None else f", accuracy {_with_interval(rung.accuracy)}")
            + f", {_images(rung)}, {max(0.0, rung.seconds):.2f} s",
        )
        for rung in rungs
    ]


def _images(rung: Rung) -> str:
    labels = f", {rung.labels:,} labels" if rung.labels else ""
    return f"{rung.images:,} images{labels}"


def _with_interval(figure: Figure) -> str:
    return f"{share(figure.accuracy)} ({share(figure.low)} to {share(figure.high)})"
