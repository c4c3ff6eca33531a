"""The site of the pages: built strictly without a network, it is searched in a browser from disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import REPOSITORY

import compatkit as ck

LOADING = ("src", "srcset", "data", "poster", "xlink:href")
"""Attributes that make a browser load something, besides ``href`` of some elements."""
NO_NETWORK = {
    name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
}


def build(folder: Path, source: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Build the site as CONTRIBUTING.md says, but into a folder, with every request to a network refused."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install 'compatkit[docs]'")
    pytest.importorskip("mkdocs_awesome_nav", reason="it is not installed: pip install 'compatkit[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {**os.environ, **NO_NETWORK, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright's Python package is not installed"
    )
    path = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no chromium on the PATH (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


class Loads(HTMLParser):
    """Addresses that a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name in LOADING or (name == "href" and tag in ("link", "use", "image"))):
                self.found.append(value)


def elsewhere(text: str) -> list[str]:
    """Return the addresses of other hosts that a page loads."""
    parser = Loads()
    parser.feed(text)
    return [address for address in parser.found if re.match(r"(?:\w+:)?//", address.strip())]


def test_what_a_page_loads_is_seen() -> None:
    assert elsewhere('<script src="//cdn.example/x.js"></script>') == ["//cdn.example/x.js"]
    assert elsewhere('<link href="https://a.example/f.css"><a href="https://b.example">b</a>') == [
        "https://a.example/f.css"
    ]
    assert elsewhere('<img src="pictures/demo.png"><script>"https://c.example"</script>') == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    for page in pages:
        assert not elsewhere(page.read_text(encoding="utf-8")), page.relative_to(site)
    for sheet in site.rglob("*.css"):
        found = re.findall(r"url\([\"']?((?:https?:)?//[^)]+)|@import", sheet.read_text(encoding="utf-8"))
        assert not found, sheet.relative_to(site)


def test_every_public_name_has_a_place_on_the_site(site: Path) -> None:
    files = (*(site / "reference" / "api").glob("*.html"), site / "reference" / "hooks.html")
    pages = "".join(page.read_text(encoding="utf-8") for page in files)
    for name in ("Registry.publish", "Trainer.fit", "Matrix.to_html", "Recombination.predict"):
        assert f'id="compatkit.{name}"' in pages
    modules = ("data", "errors", "hooks", "plugins", "domains", "signing")
    for name in ck.__all__:
        if name not in ("__version__", "match_classes", *modules):
            assert re.search(rf'id="compatkit\.([\w.]+\.)?{name}"', pages), name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_word_is_found_from_disk_and_its_page_opened(site: Path, browser: Any, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, offline=True)
    page = context.new_page()
    requests: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda entry: said.append(entry.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((site / "index.html").as_uri())
    shown = page.locator("body").get_attribute("data-md-color-scheme")
    assert shown == {"light": "default", "dark": "slate"}[scheme]
    # At once: the search of Material complains of a query that ends in a hyphen, as it does while one types.
    page.locator("input.md-search__input").fill("imagenet-strong")
    result = page.locator("a.md-search-result__link[href*='reference/recipes.html']").first
    result.wait_for(timeout=30_000)
    result.click()
    page.wait_for_url("**/reference/recipes.html**")
    assert page.locator("h1").inner_text().startswith("Recipes")
    assert said == []
    assert [address for address in requests if not address.startswith(("file:", "data:", "blob:"))] == []
    context.close()


@pytest.mark.parametrize(
    "name",
    [
        "index.html",
        "reference/cli.html",
        "reference/api/registry.html",
        "reference/recipes.html",
        "reference/errors.html",
    ],
)
def test_a_page_fits_a_phone(site: Path, browser: Any, name: str) -> None:
    """Wide tables and code scroll by themselves; the page does not."""
    context = browser.new_context(viewport={"width": 400, "height": 800})
    page = context.new_page()
    page.goto((site / name).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    context.close()


INDEX = "docs/index.md"
GLOSSARY = "(reference/glossary.md)"
FAULTS = [
    (INDEX, GLOSSARY, "(reference/nowhere.md)", "contains a link 'reference/nowhere.md'"),
    (INDEX, "(reference/cli.md)", "(reference/cli.md#nothing)", "does not contain an anchor '#nothing'"),
    (INDEX, "pictures/demo.png", "pictures/nothing.png", "contains a link 'pictures/nothing.png'"),
    (
        INDEX,
        "(reference/errors.md)",
        "(../nothing.toml)",
        "contains a link to 'nothing.toml', which does not exist",
    ),
    (
        "docs/reference/hooks.md",
        "<!-- generated: hooks -->",
        "![x](/x.png)",
        "contains an absolute link '/x.png'",
    ),
    (
        "compatkit/components/registry.py",
        "            exist_ok: Open an existing",
        "            exists: Open an existing",
        "Parameter 'exists' does not appear in the function signature",
    ),
]
"""Files, what stands in them, what is put there, and what the build says."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of what the site is made from."""
    source = tmp_path / "source"
    for folder in ("docs", "website", "compatkit", "examples", "tests", "plugins"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, source / folder, ignore=ignore)
    for file in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*.yml"), REPOSITORY / "pyproject.toml"):
        shutil.copy(file, source)
    return source


def replace(file: Path, right: str, wrong: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert right in text
    file.write_text(text.replace(right, wrong, 1), encoding="utf-8")


def test_faults_fail_the_build(copied: Path, tmp_path: Path) -> None:
    """Broken links, anchors and pictures, and docstrings with arguments that do not exist."""
    for name, right, wrong, _ in FAULTS:
        replace(copied / name, right, wrong)
    done = build(tmp_path / "site", copied)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert [text for *_, text in FAULTS if text not in said] == [], said


def test_a_name_that_does_not_exist_fails_the_build(copied: Path, tmp_path: Path) -> None:
    replace(
        copied / "docs" / "reference" / "api" / "registry.md", "::: compatkit.About", "::: compatkit.Abouts"
    )
    done = build(tmp_path / "site", copied)
    assert done.returncode != 0 and "compatkit.Abouts" in done.stdout + done.stderr
