"""A real browser for the tests of the page; without one they are skipped and say why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compatkit.reports.matrix import Matrix

ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


def chromium() -> str | None:
    return next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)


class Visit:
    """One page in a browser of its own, with everything it asked for and said."""

    def __init__(self, page: Any) -> None:
        self.page, self.requests, self.said, self.dialogs = page, [], [], []
        page.on("request", lambda item: self.requests.append(item.url))
        page.on("console", lambda entry: self.said.append(entry.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, matrix: Matrix, folder: Path) -> Any:
        path = matrix.to_html(folder / "matrix.html")
        self.page.goto(path.as_uri())
        return self.page

    def assert_quiet(self) -> None:
        self.page.wait_for_load_state("networkidle")
        assert {request for request in self.requests if not request.startswith("file:")} == set()
        assert len(set(self.requests)) == 1
        assert self.said == [] and self.dialogs == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright's Python package is not installed"
    )
    path = chromium()
    if path is None:
        pytest.skip("no chromium on the PATH (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        # Playwright gives each launch a new, empty folder of user data.
        running = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    options = getattr(request, "param", {"viewport": {"width": 1280, "height": 900}})
    context = browser.new_context(**options)
    yield Visit(context.new_page())
    context.close()
