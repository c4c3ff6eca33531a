"""Visit a page in headless Chromium: medians of what visits measure, first paint, frames while scrolling."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from playwright.sync_api import Page, sync_playwright

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
FRAMES = """
async ([selector, across, down, count]) => {
  const frame = document.querySelector(selector), times = [];
  let last = await new Promise(requestAnimationFrame);
  for (let turn = 0; turn < count; turn += 1) {
    frame.scrollBy(across, down);
    const now = await new Promise(requestAnimationFrame);
    times.push(now - last);
    last = now;
  }
  return times;
}
"""


def medians(visit: Callable[[Page], dict[str, float]], rounds: int) -> dict[str, float]:
    """Return medians over fresh pages, in milliseconds.

    Args:
        visit: Opens the page, and returns what it measures by name.
        rounds: Number of pages.
    """
    results: dict[str, list[float]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(rounds):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            for name, value in visit(page).items():
                results.setdefault(name, []).append(value)
            page.close()
        browser.close()
    return {name: round(statistics.median(values), 1) for name, values in results.items()}


def scrolled(page: Page, name: str, selector: str, by: tuple[int, int], frames: int) -> dict[str, float]:
    """Scroll an element, and return the times of its frames in milliseconds.

    Args:
        page: Page of the element.
        name: Name of the figures.
        selector: The element.
        by: Pixels of each frame, across and down.
        frames: Number of frames.
    """
    times = sorted(page.evaluate(FRAMES, [selector, *by, frames]))
    return {
        f"{name}, median frame": statistics.median(times),
        f"{name}, 95 % of frames below": times[int(0.95 * len(times))],
        f"{name}, slowest frame": times[-1],
    }
