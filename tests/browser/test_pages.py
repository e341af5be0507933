"""Reports and the site in a real browser: errors, network, colour schemes, phones, keyboard, accessibility."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from hamr.report.drawing import LEAST_PX
from tests.browser.conftest import SITE_PAGES

REPORTS = ("run", "sage")
SCHEMES = ("light", "dark")
WIDTHS = (390, 1440)
FOCUSABLE = """Array.from(document.querySelectorAll('a[href], summary, [tabindex="0"]'))
    .filter(part => part.checkVisibility())"""

on_every_page = pytest.mark.parametrize("name", [*REPORTS, "transcripts", *SITE_PAGES])
on_every_report = pytest.mark.parametrize("name", REPORTS)
in_every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
at_every_width = pytest.mark.parametrize("width", WIDTHS)


@contextmanager
def opened(browser: Browser, url: str, scheme: str = "light", width: int = 1440) -> Iterator[Page]:
    """Open the page; afterwards fail where it logged an error or loaded anything from elsewhere."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    context.set_default_timeout(120_000)
    page = context.new_page()
    errors: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    try:
        page.goto(url, wait_until="load")
        page.wait_for_timeout(100)  # scripts of the site that run after the load
        yield page
    finally:
        context.close()
    own = url if url.startswith("file:") else url[: url.index("/", len("http://"))]
    assert errors == []
    assert [address for address in requested if not address.startswith((own, "data:", "blob:"))] == []


@on_every_page
@in_every_scheme
@at_every_width
def test_pages_follow_the_colour_scheme_and_fit_the_window(
    browser: Browser, urls: dict[str, str], name: str, scheme: str, width: int
) -> None:
    with opened(browser, urls[name], scheme, width) as page:
        wide = page.evaluate("document.documentElement.scrollWidth")
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert wide <= width
    red, green, blue = map(int, colour[colour.index("(") + 1 : -1].split(",")[:3])
    brightness = (red + green + blue) / (3 * 255)
    assert brightness < 0.2 if scheme == "dark" else brightness > 0.9


@on_every_page
@in_every_scheme
@at_every_width
def test_axe_finds_nothing_serious(browser: Browser, urls: dict[str, str], name: str, scheme: str, width: int) -> None:
    with opened(browser, urls[name], scheme, width) as page:
        found = Axe().run(page).response["violations"]
    serious = {
        violation["id"]: [node["target"] for node in violation["nodes"]][:3]
        for violation in found
        if violation["impact"] in ("serious", "critical")
    }
    assert serious == {}, json.dumps(serious, indent=1)


@on_every_report
@at_every_width
def test_text_of_figures_has_at_least_11_px(browser: Browser, urls: dict[str, str], name: str, width: int) -> None:
    with opened(browser, urls[name], width=width) as page:
        page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        sizes = page.evaluate(
            """Array.from(document.querySelectorAll('svg text')).map(text => {
                const svg = text.ownerSVGElement
                const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width
                return scale * parseFloat(getComputedStyle(text).fontSize)
            })"""
        )
    assert len(sizes) > 100
    assert min(sizes) >= LEAST_PX - 0.1


@on_every_report
@in_every_scheme
def test_text_of_figures_has_contrast(browser: Browser, urls: dict[str, str], name: str, scheme: str) -> None:
    with opened(browser, urls[name], scheme) as page:
        colours = page.evaluate(
            """Array.from(new Set(Array.from(document.querySelectorAll('svg text'))
                .map(text => getComputedStyle(text).fill)))"""
        )
        ground = page.evaluate("getComputedStyle(document.querySelector('figure')).backgroundColor")
    assert colours
    for colour in colours:
        assert contrast(colour, ground) >= 4.5, (colour, ground)


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours `rgb(r, g, b)` (WCAG 2)."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@on_every_report
@at_every_width
def test_a_report_is_usable_with_the_keyboard_alone(
    browser: Browser, urls: dict[str, str], name: str, width: int
) -> None:
    with opened(browser, urls[name], width=width) as page:
        wanted = page.evaluate(f"{FOCUSABLE}.length")
        reached = set()
        for _ in range(wanted):
            page.keyboard.press("Tab")
            place = page.evaluate(
                f"""(() => {{
                    const at = document.activeElement, box = at.getBoundingClientRect()
                    return {{number: {FOCUSABLE}.indexOf(at), outline: getComputedStyle(at).outlineStyle,
                             seen: box.bottom > 0 && box.top < innerHeight}}
                }})()"""
            )
            assert place["outline"] != "none" and place["seen"], place
            reached.add(place["number"])
        assert reached == set(range(wanted))
        link = page.locator("nav a").last
        link.focus()
        page.keyboard.press("Enter")
        target = str(link.get_attribute("href"))
        assert page.evaluate("location.hash") == target
        assert page.locator(target).is_visible()
        fold = page.locator("summary").first
        fold.focus()
        page.keyboard.press("Enter")
        assert page.locator("details").first.get_attribute("open") is not None


@on_every_report
def test_wide_parts_scroll_with_the_arrow_keys(browser: Browser, urls: dict[str, str], name: str) -> None:
    with opened(browser, urls[name], width=390) as page:
        part = page.locator("figure .scroll[tabindex]").first
        part.focus()
        assert part.evaluate("part => part.scrollWidth > part.clientWidth")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.activeElement.scrollLeft > 0")


@at_every_width
def test_transcripts_are_filtered_with_the_keyboard_alone(browser: Browser, urls: dict[str, str], width: int) -> None:
    with opened(browser, urls["transcripts"], width=width) as page:
        assert page.locator("details:visible").count() == 24
        page.locator("select[name=agent]").focus()
        page.keyboard.type("scripted:wrong")
        page.keyboard.press("Tab")
        assert page.locator("details:visible").count() == 8
        page.locator("input[name=text]").focus()
        page.keyboard.type("airline_refund/")
        assert 0 < page.locator("details:visible").count() < 8
        assert page.locator("#count").inner_text() == f"{page.locator('details:visible').count()} shown"
        page.locator("summary:visible").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details[open] li").count() == 10


def test_the_site_is_usable_with_the_keyboard_alone(browser: Browser, urls: dict[str, str]) -> None:
    with opened(browser, urls["index.html"]) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.classList.contains('md-skip')")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('article, main') !== null")
