"""The table that tells who is called when in a run, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compatkit.contracts.display import aligned
from compatkit.plugins.calls import Bound

HEADER = ("event", "order", "instance", "weight", "steps", "effect", "from")


def table(events: Mapping[str, Sequence[Bound]], origins: Mapping[str, str], dropped: Sequence[str]) -> str:
    """Return the table as aligned text.

    Args:
        events: What is called at each moment, in order.
        origins: Distribution and version by instance.
        dropped: Instances of weight 0.
    """
    rows: list[tuple[str, ...]] = [HEADER]
    for event, bounds in events.items():
        for place, one in enumerate(bounds, 1):
            stop = "end" if one.phase.stop is None else one.phase.stop
            steps = "once" if event in ("set_up", "pretrain", "finish") else f"{one.phase.start} to {stop}"
            weight, origin = f"{one.weight:g}", origins[one.instance]
            rows.append((event, str(place), one.instance, weight, steps, one.effect, origin))
    lines = aligned(rows) if len(rows) > 1 else ["No regularizers."]
    if dropped:
        lines.append(f"Left out (weight 0): {', '.join(dropped)}")
    return "\n".join(lines)
