"""The drawing of the rooms of compatkit, from the table of docs/explanation/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

from sketch import BLUE, GRAY, GREEN, ORANGE, PURPLE, Sheet

from compatkit.reports.drawing import MUTED_COLOR

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "architecture.md"
ROW = re.compile(r"^\| `(\w+)/` \| ([^|;:]+)[^|]*\| ([^|]*) \|$", re.MULTILINE)
EVERYWHERE = "foundation"
"""Room that every other may import, so that no arrow to it is drawn."""


def _imports() -> dict[str, set[str]]:
    """Return the rooms that each room may import, without those that another of them imports anyway."""
    direct = {
        room: set(re.findall(r"`(\w+)/`", allowed)) - {EVERYWHERE}
        for room, _, allowed in ROW.findall(PAGE.read_text(encoding="utf-8"))
    }
    for room, allowed in direct.items():
        if "every room above" in allowed or room == "cli":
            direct[room] = set(direct) - {room, EVERYWHERE}
    below: dict[str, set[str]] = {}
    for room, allowed in direct.items():  # rows stand below those that they import
        below[room] = allowed.union(*(below[other] for other in allowed))
    return {
        room: {other for other in allowed if not any(other in below[third] for third in allowed)}
        for room, allowed in direct.items()
    }


def rooms() -> Sheet:
    """The rooms of compatkit; an arrow leads to a room that may be imported."""
    imports = _imports()
    depth: dict[str, int] = {}
    for room, allowed in imports.items():
        depth[room] = max((depth[other] + 1 for other in allowed), default=0)
    levels = [[room for room in imports if depth[room] == level] for level in range(max(depth.values()) + 1)]
    height, width = 0.72, 7.2
    sheet = Sheet(width, 0.5 + height * len(levels))
    places: dict[str, tuple[float, float]] = {}
    for level, names in enumerate(levels):
        for number, room in enumerate(names):
            x = 0.3 + (width - 2.2) * (number + 0.5) / len(names)
            places[room] = x, 0.4 + height * level
    for room, allowed in imports.items():
        for other in allowed:
            (x, y), (left, low) = places[room], places[other]
            sheet.arrow((x, y - 0.17), (left, low + 0.18), GRAY)
    colors = {0: GRAY, 1: BLUE, 2: BLUE, 3: GREEN, 4: GREEN, 5: PURPLE, 6: PURPLE}
    for room, (x, y) in places.items():
        sheet.box(x, y, room, colors.get(depth[room], ORANGE), width=1.12, height=0.34)
    top = 0.4 + height * (len(levels) - 1)
    for number, text in enumerate(("compatkit_plugins,\nyour packages", "compatkit_studies")):
        y = top - 0.1 - number * 1.35
        sheet.box(width - 0.95, y, text, ORANGE, width=1.6, height=0.5, size=8.5, dashed=True)
        sheet.words(width - 0.95, y - 0.5, "import public\nnames only", size=8, color=MUTED_COLOR)
    sheet.words(
        width / 2,
        top + 0.5,
        "may import what its arrows lead to, and what these lead to; all may import errors and foundation",
        size=8,
        color=MUTED_COLOR,
    )
    return sheet
