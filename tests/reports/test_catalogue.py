"""The catalogue of a registry in a real browser, opened from its folder: table, keyboard, hostile texts, print.

Without Chromium or Playwright the browser's tests are skipped.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import hostile
import pytest

from compatkit.components.catalogue.site import write_site
from compatkit.contracts.manifest import About, Parent
from compatkit.registry.store import Store

from .conftest import Visit

MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
BIDI = "\u202egnp.exe\x1b[31m"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalogue with one of everything, and 60 components whose texts mean harm; only to be read."""
    folder = tmp_path_factory.mktemp("catalogue")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPATKIT_CACHE", str(folder / "cache"))
        patch.setenv("COMPATKIT_TRUST", str(folder / "trust"))
        return write_site(registry(folder / "parts"), folder / "site").folder


def registry(folder: Path) -> Store:
    store = hostile.build(folder)
    newest = store.resolve(hostile.NAME)
    for number in range(60):
        data = hostile.weights(number + 2)
        about = About(
            title=f"{MARKUP} {number}",
            description=f"first {BIDI}\nhttps://user:secret-word-1@example.org/x {MARKUP}",
            tags={"__proto__": MARKUP, "dataset": f"set{number % 3}", "{{ 7*7 }}": BIDI},
            source="javascript:alert(3)",
        )
        parents = (Parent("initialised_from", str(newest.digest)),)
        manifest = hostile.manifest_of(store.put_blob(data), data, about=about, parents=parents)
        store.publish(f"crowd/part{number:02}", manifest)
    store.publish("crowd/constructor", store.manifest(hostile.NAME))
    return store


def visit_front(visit: Visit, site: Path, words: str = "") -> Any:
    visit.page.goto((site / "index.html").as_uri() + words)
    visit.page.locator("#count", has_text=" of ").wait_for()
    return visit.page


def visit_component(visit: Visit, site: Path, reference: str) -> Any:
    visit.page.goto("about:blank")
    visit.page.goto(f"{(site / 'component.html').as_uri()}#{reference}")
    visit.page.wait_for_selector("h1")
    return visit.page


def assert_harmless(visit: Visit) -> None:
    visit.page.wait_for_load_state("networkidle")
    assert visit.said == [] and visit.dialogs == []
    assert all(request.startswith(("file:", "data:,")) for request in visit.requests)
    assert visit.page.locator("main img, main script:not([src])").count() == 0


def test_search_and_filters_select_rows(visit: Visit, site: Path) -> None:
    page = visit_front(visit, site)
    assert page.text_content("#count") == "62 of 62 components"
    page.keyboard.press("/")
    page.keyboard.type("PART0")
    assert page.text_content("#count") == "10 of 62 components"
    page.select_option("#data", label="set1 (20)")
    assert page.text_content("#count") == "3 of 62 components"
    assert page.locator("tr.row:visible th").all_text_contents() == [f"crowd/part0{n}" for n in (1, 4, 7)]
    address = page.url
    page.keyboard.press("Escape")
    page.focus("#search")
    page.keyboard.press("Escape")
    assert page.text_content("#count") == "62 of 62 components"
    page.goto("about:blank")
    page.goto(address)
    assert page.text_content("#count") == "3 of 62 components"
    assert_harmless(visit)


def test_headings_sort_and_say_so(visit: Visit, site: Path) -> None:
    page = visit_front(visit, site)
    page.get_by_role("button", name="name").click()
    assert page.locator("thead th").first.get_attribute("aria-sort") == "descending"
    assert page.locator("tr.row:visible th").first.text_content() == "team/one"
    page.get_by_role("button", name="fit").click()
    assert page.locator("tr.row:visible .c-fit").first.text_content() == "★ perfect"


def test_arrow_keys_reach_every_row_and_enter_opens_it(visit: Visit, site: Path) -> None:
    page = visit_front(visit, site)
    assert page.locator("tr.row:visible").count() < 62  # only those in sight
    page.focus("#search")
    for key in ("ArrowDown", "ArrowDown", "End"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.textContent") == "team/one"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    row = "document.activeElement.closest('tr').getAttribute('aria-rowindex')"
    assert page.evaluate(row) == "63" and page.get_attribute("table", "aria-rowcount") == "63"
    page.keyboard.press("Enter")
    page.wait_for_url("**/component.html#team/one@2.0.0")
    assert page.text_content("h1") == "team/one 2.0.0"


def test_a_component_shows_all_that_is_known_of_it(visit: Visit, site: Path) -> None:
    page = visit_component(visit, site, "team/one@2.0.0")
    text = page.inner_text("main")
    for shown in (
        ":prod",
        "0.900 (0.600",
        "N x 8 x H x W",
        "dog (also hound)",
        "hash-1",
        "not verified: no key is trusted here",
        "new weights, without a passed measurement",
        "trained on the test images",
        'registry.load("team/one@2.0.0")',
        "compatkit export team/one@2.0.0 one.safetensors",
        ":prod 1.0.0 -> 2.0.0",
    ):
        assert shown in text
    links = page.locator("svg.lineage a")
    assert links.count() == 11  # 12 places in a column, of which the last says how many more there are
    assert "and 49 more" in page.locator("svg.lineage").text_content()
    links.first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/component.html#crowd/part*")
    page.locator("h1", has_text="crowd/part").wait_for()
    assert_harmless(visit)


def test_a_withdrawn_version_gives_its_reason(visit: Visit, site: Path) -> None:
    page = visit_component(visit, site, "team/one@1.0.0")
    assert "Withdrawn. trained on the test images" in page.inner_text(".warning")


def test_hostile_texts_are_text(visit: Visit, site: Path) -> None:
    page = visit_front(visit, site)
    assert page.locator("tr.row:visible .c-title").nth(3).text_content() == f"{MARKUP} 2"
    page = visit_component(visit, site, "crowd/part07")
    text = page.inner_text("main")
    assert (
        f"{MARKUP} 7" in text
        and f"__proto__={MARKUP}" in text
        and "{{ 7*7 }}=\\u202egnp.exe\\x1b[31m" in text
    )
    assert "first \\u202egnp.exe" in text and "javascript:alert(3)" in text
    assert page.locator("a[href^='javascript']").count() == 0
    assert_harmless(visit)
    assert visit_component(visit, site, "crowd/constructor").text_content("h1") == "crowd/constructor 1.0.0"


@pytest.mark.parametrize(
    "reference", ["__proto__", "constructor", "../../x", "<img src=x onerror=alert(1)>", "a@b", "", "%"]
)
def test_an_unknown_address_says_so(visit: Visit, site: Path, reference: str) -> None:
    page = visit_component(visit, site, reference)
    assert page.text_content("h1") == "No such component"
    assert visit.dialogs == [] and all("Refused" not in line for line in visit.said)


def test_the_policy_stops_what_would_get_past_the_escapes(visit: Visit, site: Path, tmp_path: Path) -> None:
    site = shutil.copytree(site, tmp_path / "changed")
    front = site / "index.html"
    front.write_text(
        front.read_text().replace("<h1>", "<script>alert(9)</script><img src=x onerror=alert(8)><h1>")
    )
    page = visit_front(visit, site)
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    assert visit.dialogs == []
    assert sum("Content Security Policy" in line for line in visit.said) >= 2


def test_nothing_secret_stands_in_any_file(site: Path) -> None:
    for path in site.rglob("*.*"):
        assert b"secret-word-1" not in path.read_bytes()
    assert all(b"<" not in path.read_bytes() for path in (site / "data").iterdir())


def test_every_row_is_printed(visit: Visit, site: Path) -> None:
    page = visit_front(visit, site)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("tr.row:not([hidden])").count() == 62
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("tr.spacer:not([hidden])").count() == 1


@pytest.mark.parametrize("visit", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_a_list_names_every_component(visit: Visit, site: Path) -> None:
    visit.page.goto((site / "index.html").as_uri())
    visit.page.locator("noscript a").click()
    assert visit.page.locator("tbody tr").count() == 62
    assert visit.page.locator("tbody tr").first.locator("td").last.text_content() == "better"


SCREENS = [
    {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    for width in (1280, 400)
    for scheme in ("light", "dark")
]


@pytest.mark.parametrize("visit", SCREENS, indirect=True)
def test_no_page_scrolls_sideways(visit: Visit, site: Path, request: pytest.FixtureRequest) -> None:
    for page in (visit_front(visit, site), visit_component(visit, site, "team/one")):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = request.node.callspec.params["visit"]["color_scheme"] == "dark"
    color = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(color) == ("rgb(16, 21, 28)" if dark else "rgb(255, 255, 255)")
    page.click("#theme")
    page.click("#theme")
    assert page.text_content("#theme") == "Theme: dark" and page.evaluate(color) == "rgb(16, 21, 28)"
