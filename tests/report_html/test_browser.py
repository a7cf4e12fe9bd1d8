"""The page in a real browser: light, dark, phone, paper; no complaint, no request, nothing that acts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import headless_browser
import pytest
from headless_browser import Browser
from report_pages import everything

from stratadvisor.report_html import page, theme

pytestmark = pytest.mark.process

HOSTILE = (
    "<script>document.title='owned'</script><img src=/x onerror=\"document.title='owned'\"></style><style>*{color:red}"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = headless_browser.find()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing: .ci/run installs it")
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with Browser(program) as found:
        yield found


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, list[str]]]:
    """Serve the plain and the hostile page, and keep every path that is asked for."""
    pages = {"/plain": page.render(everything(), None), "/hostile": page.render(everything(HOSTILE), None)}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = pages.get(self.path)
            self.send_response(200 if content else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((content or "").encode())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


VIEWS = {
    "light": {"width": 1200, "height": 900},
    "dark": {"width": 1200, "height": 900, "dark": True},
    "phone": {"width": 360, "height": 740},
    "phone-dark": {"width": 360, "height": 740, "dark": True},
    "paper": {"width": 800, "height": 1100, "paper": True},
}


@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_one_request_no_complaint_and_no_script(browser, site, name):
    address, asked = site
    asked.clear()
    browser.view(1200, 900)
    browser.open(f"{address}/{name}")
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.complaints() == []
    assert asked == [f"/{name}"]
    assert [u for u in browser.requests() if not u.startswith("data:")] == [f"{address}/{name}"]
    assert browser.evaluate("document.title").startswith("How to train model")
    assert browser.evaluate("document.scripts.length + document.images.length") == 0
    assert browser.evaluate("document.styleSheets.length") == 1
    # the policy let the style sheet in
    assert browser.evaluate("getComputedStyle(document.querySelector('figure')).borderTopStyle") == "solid"


@pytest.mark.parametrize("name", ["plain", "hostile"])
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_shows_every_drawing_within_its_width(browser, site, tmp_path, view, name):
    browser.view(**VIEWS[view])
    browser.open(f"{site[0]}/{name}")
    width = VIEWS[view]["width"]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    boxes = browser.evaluate(
        "[...document.querySelectorAll('figure svg')].map(s => { const r = s.getBoundingClientRect();"
        " return [s.closest('figure').id, r.left, r.right, r.height] })"
    )
    assert len(boxes) == 12
    for key, left, right, height in boxes:
        assert 0 <= left < right <= width, key
        assert height > 40, key
    picture = browser.picture(tmp_path / f"{name}-{view}.png", "#memory")
    assert picture.width == width
    dark = VIEWS[view].get("dark", False)
    ground = theme.GROUND.dark if dark else theme.GROUND.light
    assert picture.pixel(2, 2) == ground
    colours = picture.colours()
    assert len(colours) > 20
    bars = theme.CATEGORIES[0]
    assert (bars.dark if dark else bars.light) in colours  # the drawings turn with the page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_in_drawings_stand_out_from_the_ground(browser, site, dark):
    browser.view(1200, 900, dark=dark)
    browser.open(f"{site[0]}/plain")
    fills = browser.evaluate(
        "[...new Set([...document.querySelectorAll('figure:not([id^=pairs]) svg text')]"
        ".map(t => getComputedStyle(t).fill))]"
    )
    assert fills
    for fill in fills:
        red, green, blue = (int(part) for part in fill.removeprefix("rgb(").rstrip(")").split(","))
        bright = (red + green + blue) / (3 * 255)
        if f"#{red:02x}{green:02x}{blue:02x}" == (theme.GROUND.dark if dark else theme.GROUND.light):
            continue  # words inside a bar
        assert bright > 0.45 if dark else bright < 0.55, fill


def test_words_in_drawings_do_not_leave_them(browser, site):
    browser.view(1200, 900)
    browser.open(f"{site[0]}/plain")
    outside = browser.evaluate(
        "[...document.querySelectorAll('figure svg')].flatMap(s => { const b = s.getBoundingClientRect();"
        " return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();"
        " return r.width > 0 && (r.left < b.left - 2 || r.right > b.right + 2 || r.top < b.top - 2"
        " || r.bottom > b.bottom + 2) }).map(t => s.closest('figure').id + ': ' + t.textContent) })"
    )
    assert outside == []


def test_on_paper_the_tables_are_open_and_the_ground_is_light(browser, site):
    browser.view(800, 1100, dark=True, paper=True)
    browser.open(f"{site[0]}/plain")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    heights = browser.evaluate(
        "[...document.querySelectorAll('figure table')].map(t => t.getBoundingClientRect().height)"
    )
    assert heights
    assert min(heights) > 10


def test_the_keyboard_reaches_tables_and_links(browser, site):
    browser.view(1200, 900)
    browser.open(f"{site[0]}/plain")
    reached = browser.evaluate(
        "[...document.querySelectorAll('a, summary, .scroll')].every(n => { n.focus({preventScroll: true});"
        " return document.activeElement === n || !n.checkVisibility() })"
    )
    assert reached is True
