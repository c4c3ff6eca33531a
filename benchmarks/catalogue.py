"""How fast is the catalogue of a large registry written, and how fluid is its front page in headless Chromium?

::

    python benchmarks/catalogue.py --names 10000 --out docs/results/catalogue.json

Writes the catalogue with the command line in fresh processes: first without an index of the registry, then with it.
Then opens fresh front pages from the folder and measures the first paint with content, the rows of the table, the time
from each keystroke in the search to the frame after it, sorting, and the frames while scrolling by 60 and by 3,000
pixels a frame.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import browser
import catalogue_registry
from playwright.sync_api import Page

WORDS = "resnet night flowers"
AIMS = {
    "write, seconds": 60.0,
    "first paint": 1000.0,
    "first rows": 1000.0,
    "keystroke, slowest": 100.0,
    "scroll by 60, slowest frame": 50.0,
    "scroll by 3000, slowest frame": 50.0,
}
"""Figures that the page should stay below, in milliseconds where nothing else stands."""
WATCH = """
  const seen = () => {
    if (document.querySelector("tr.row")) window.shownAt = performance.now(); else requestAnimationFrame(seen);
  };
  requestAnimationFrame(seen);
  window.strokes = [];
  const note = (event) => window.strokes.push(performance.now() - event.timeStamp);
  const after = (event) => requestAnimationFrame(() => setTimeout(note, 0, event));
  addEventListener("keydown", after, { capture: true });
  addEventListener("click", after, { capture: true });
"""
RUN = """
import resource, runpy, sys
sys.argv = ["compatkit", *sys.argv[1:]]
try:
    runpy.run_module("compatkit", run_name="__main__")
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
"""


def write(registry: Path, out: Path, cache: Path) -> dict[str, Any]:
    """Write the catalogue in a fresh process; return seconds with the start of Python, memory and sizes."""
    words = ["--registry", str(registry), "site", str(out), "--json", "--quiet"]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COMPATKIT_CACHE": str(cache)},
    )
    seconds = time.perf_counter() - start
    written, (processor, memory) = json.loads(done.stdout), done.stderr.split()[-2:]
    return {
        "write, seconds": round(seconds, 2),
        "processor seconds": round(float(processor), 2),
        "peak memory, MB": round(int(memory) / 1024),
        "size, MB": round(written["bytes"] / 1e6, 2),
        "front page and its data, MB": round(
            sum((out / name).stat().st_size for name in ("index.html", "data/index.js")) / 1e6, 2
        ),
        **{name: written[name] for name in ("files", "components", "versions")},
    }


def browse(site: Path, rounds: int) -> dict[str, float]:
    """Return medians over fresh pages, in milliseconds.

    Args:
        site: Folder of the catalogue.
        rounds: Number of pages.
    """

    def visit(page: Page) -> dict[str, float]:
        page.add_init_script(WATCH)
        page.goto((site / "index.html").as_uri())
        page.wait_for_function("window.shownAt !== undefined")
        seen = {"first paint": page.evaluate(browser.PAINT), "first rows": page.evaluate("shownAt")}
        for step in (60, 3000):
            seen |= browser.scrolled(page, f"scroll by {step}", "#frame", (0, step), 120)
        page.focus("#search")
        page.keyboard.type(WORDS, delay=120)
        strokes = _strokes(page, len(WORDS))
        seen |= {"keystroke, median": statistics.median(strokes), "keystroke, slowest": max(strokes)}
        page.evaluate("strokes.length = 0")
        page.click("#clear")
        page.click("th.c-published button")
        seen["clear the search"], seen["sort by time"] = _strokes(page, 2)
        return seen

    return browser.medians(visit, rounds)


def _strokes(page: Page, count: int) -> list[float]:
    page.wait_for_function("(count) => strokes.length >= count", arg=count)
    return page.evaluate("strokes")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", type=int, default=10_000, help="names in the registry, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--registry", type=Path, help="folder of a registry, in place of one that is made")
    parser.add_argument("--out", type=Path, help="file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        registry = options.registry
        if registry is None:
            registry = Path(folder) / "parts"
            catalogue_registry.build(registry, options.names)
        site, cache = Path(folder) / "site", Path(folder) / "cache"
        load = os.getloadavg()[0]
        first, again = (write(registry, site, cache) for _ in range(2))
        seen = browse(site, options.rounds)
    figures = {**again, **seen}
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors",
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "rounds": options.rounds,
        "written without an index": first,
        "written with an index": again,
        "milliseconds": seen,
        "aims missed": {name: [figures[name], aim] for name, aim in AIMS.items() if figures[name] > aim},
    }
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
