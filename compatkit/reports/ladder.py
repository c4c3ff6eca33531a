"""A ladder of bridges as a small picture: agreement and accuracy of each rung against its seconds."""

from __future__ import annotations

from collections.abc import Sequence

from compatkit.contracts.evidence import Figure, Rung
from compatkit.reports.ink import COLORS, INK, MARKS, PAPER, QUIET, png, printable
from compatkit.reports.wording import share, visible

LEAST, MOST = 0.01, 1e9
"""Seconds; faster and slower rungs are drawn at the edges."""


def draw(rungs: Sequence[Rung], title: str) -> bytes:
    """Return the picture as PNG; equal rungs (at least one) give equal bytes.

    Args:
        rungs: In the order of the legend.
        title: Above the picture.
    """
    from matplotlib.figure import Figure as Picture

    figure = Picture((5.2, 3.4), dpi=160, facecolor=PAPER)
    axes = figure.add_axes((0.1, 0.15, 0.85, 0.75))
    axes.set_xscale("log")
    for number, rung in enumerate(rungs):
        color, seconds, chosen = (
            COLORS[number % len(COLORS)],
            min(MOST, max(LEAST, rung.seconds)),
            ", chosen" * rung.chosen,
        )
        axes.plot([seconds] * 2, [rung.agreement.low, rung.agreement.high], color=color, linewidth=1)
        axes.plot(
            seconds,
            rung.agreement.accuracy,
            MARKS[number % len(MARKS)],
            color=color,
            markersize=8 if rung.chosen else 5,
            label=printable(f"{visible(rung.name)}{chosen}, {_used(rung)}"),
        )
        if rung.accuracy is not None:
            axes.plot(seconds, rung.accuracy.accuracy, "x", color=color, markersize=6)
    axes.plot([], [], "|", color=QUIET, label="agreement with the head's own network, 95 % interval")
    axes.plot([], [], "x", color=QUIET, label="accuracy on test images")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(ylim=(-0.03, 1.03))
    axes.set_xlabel("seconds to fit", color=QUIET, fontsize=8)
    axes.set_ylabel("share of images", color=QUIET, fontsize=8)
    axes.set_title(printable(title), loc="left", fontsize=8, color=INK, parse_math=False)
    axes.tick_params(labelsize=7, colors=QUIET)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    for text in legend.get_texts():
        text.set_parse_math(False)
    return png(figure, "Ladder of bridges", tight=True)


def described(rungs: Sequence[Rung]) -> list[tuple[str, str]]:
    """Return name and figures of each rung."""
    return [
        (
            f"{visible(rung.name)}{', chosen' * rung.chosen}",
            f"agreement {_between(rung.agreement)}"
            + ("" if rung.accuracy is None else f", accuracy {_between(rung.accuracy)}")
            + f", {_used(rung)}, {max(0.0, rung.seconds):.2f} s",
        )
        for rung in rungs
    ]


def _used(rung: Rung) -> str:
    labels = f", {rung.labels:,} labels" if rung.labels else ""
    return f"{rung.images:,} images{labels}"


def _between(figure: Figure) -> str:
    return f"{share(figure.accuracy)} ({share(figure.low)} to {share(figure.high)})"
