"""Write what the kept runs of the studies took to ``studies/durations.json``, which ``compatkit study list`` shows.

    .venv-dev/bin/python benchmarks/study_times.py

Of several kept results of a study and size, those with the settings of the size count first, then those of most arms.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from compatkit.experiments.studies import find, read
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.records import RENAMED

REPOSITORY = Path(__file__).resolve().parents[1]
MACHINE = "one thread of an x86_64 processor, no GPU"


def measured(folder: Path) -> tuple[str, str, dict[str, Any]]:
    """Return number, size and entry of a folder of results."""
    document = read(folder)
    number, size = document["study"], document["size"]
    machines = [
        (machine["processor"], machine["device"], machine["threads"]) for machine in document["machines"]
    ]
    if machines != [("x86_64", "cpu", 1)]:
        raise SystemExit(f"{folder} was measured on {machines}, not on {MACHINE}.")
    defaults = settings_of(find(number), size)
    settings = {RENAMED.get(name, name): value for name, value in document["settings"].items()}
    changes = {name: value for name, value in settings.items() if value != defaults.get(name)}
    seconds = {
        arm: round(fmean(values), 1) for arm, values in document["seconds"].items() if fmean(values) > 0
    }
    return number, size, {"seconds": seconds, "seeds": len(document["seeds"]), "changes": changes}


def main() -> None:
    """Write the file."""
    studies: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted((REPOSITORY / "docs" / "results").glob("*/results.json")):
        number, size, entry = measured(path.parent)
        known = studies.setdefault(number, {})
        best = known.get(size)
        if best is None or rank(entry) > rank(best):
            known[size] = entry
    text = json.dumps({"machine": MACHINE, "studies": studies}, indent=1, sort_keys=True)
    (REPOSITORY / "studies" / "durations.json").write_text(text + "\n")


def rank(entry: dict[str, Any]) -> tuple[bool, int, int]:
    """Return how well an entry stands for a size."""
    return not entry["changes"], len(entry["seconds"]), entry["seeds"]


if __name__ == "__main__":
    main()
