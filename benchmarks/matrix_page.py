"""How fluid is the page of a large matrix in headless Chromium?

::

    python benchmarks/matrix_page.py --size 300 --out docs/results/matrix_page.json

Measures the time to the first paint with content, from a sort or filter to the next frame, and the frames while
scrolling down and right through the table. The cells are drawn from a generator, with every verdict among them.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import browser
from playwright.sync_api import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from reports import examples

ACTION = """
async ([id, value, event]) => {
  const node = document.getElementById(id), start = performance.now();
  node.value = value;
  node.dispatchEvent(new Event(event, { bubbles: true }));
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}
"""
ACTIONS = {
    "sort rows by mean": ("sort-rows", "mean", "change"),
    "sort columns by best": ("sort-columns", "best", "change"),
    "filter rows by name": ("filter-rows", "domain-1", "input"),
    "least accuracy": ("filter-value", "0.9", "input"),
}
OPEN = """
async () => {
  const start = performance.now();
  document.querySelector("td a.open").click();
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}
"""


def measure(file: Path, rounds: int) -> dict[str, float]:
    """Return medians over fresh pages, in milliseconds.

    Args:
        file: Page.
        rounds: Number of pages.
    """

    def visit(page: Page) -> dict[str, float]:
        page.goto(file.as_uri())
        page.wait_for_selector("td a.open")
        seen = {"first paint": page.evaluate(browser.PAINT), "first sheet": page.evaluate(OPEN)}
        page.keyboard.press("Escape")
        seen["second sheet"] = page.evaluate(OPEN)
        page.keyboard.press("Escape")
        for name, step in (("down", (0, 60)), ("right", (60, 0)), ("both", (-40, -40))):
            seen |= browser.scrolled(page, f"scroll {name}", ".frame", step, 180)
        for name, action in ACTIONS.items():
            seen[name] = page.evaluate(ACTION, list(action))
        return seen

    return browser.medians(visit, rounds)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=300, help="extractors, and heads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    matrix = examples.crowd(options.size)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        file = matrix.to_html(Path(folder) / "matrix.html")
        written = time.perf_counter() - start
        figures = measure(file, options.rounds)
        size = file.stat().st_size / 1e6
    result = {
        "size": options.size,
        "rounds": options.rounds,
        "machine": platform.processor() or platform.machine(),
        "write seconds": round(written, 2),
        "megabytes": round(size, 2),
        "milliseconds": figures,
    }
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
