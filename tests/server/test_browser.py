"""The page in a real browser: typing, switching, editing, a run of 100,000 rows, the keyboard, a phone, and axe-core.

Needs Debian's chromium and playwright; skipped with the reason where they are missing. Screenshots are written to the
folder that SALIENCE_SCREENSHOTS names, if it does.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import salience
from salience.server import create_app
from salience.server.guard import host_names
from salience.training.distillation import DistillationResult
from salience.training.loop import Epoch
from salience.views.evaluation import page as evaluation_page
from salience.views.training import page as training_page
from server.large import write_large_run
from server.live import served
from shapes import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
    pytest.mark.xdist_group("browser"),
]
AXE = Path(__file__).parents[1] / "fixtures" / "axe" / "axe.min.js"
SHOTS = os.environ.get("SALIENCE_SCREENSHOTS")
SLOW = 60_000
"""Milliseconds to wait for what should take a moment: the machine may be busy."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A large run, and saved reports with charts."""
    out = tmp_path_factory.mktemp("browser") / "out"
    write_large_run(out / "large", 100_000)
    texts = ["A fine film.", "A dull, dull film.", "The cast is splendid, the plot is not."]
    metrics = ["comprehensiveness", "hiding_area"]
    evaluation = salience.evaluate(salience.load(), texts, ["attention", "input_x_gradient"], metrics=metrics)
    (out / "evaluation.html").write_text(evaluation_page(evaluation), "utf-8")
    measured = ({"accuracy": 0.7 + 0.05 * n, "agreement": 0.2 * n} for n in range(3))
    before, *after = measured
    epochs = tuple(Epoch(n, {"task": 0.0}, {"task": 1.0}, 0, one) for n, one in enumerate(after, 1))
    trained = DistillationResult(out, {"method": "lrp"}, before, epochs, {"test": 0.8})
    (out / "training.html").write_text(training_page(trained), "utf-8")
    return out


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A server of the bundled models, of a tiny language model, and of a large run."""
    models = {name: salience.load(name) for name in ("sentiment", "sentiment_bilstm")} | {"gpt2": build("gpt2_lm")}
    with served(lambda port: create_app(models, folders=[folder], hosts=host_names("127.0.0.1", port))) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Open]:
    """Open a page; at the end of the test, no error was logged and no other host was asked."""
    problems: list[str] = []
    contexts: list[Any] = []

    def asked(request: Any) -> None:
        if not request.url.startswith((address, "data:")):
            problems.append(request.url)

    def opened(path: str = "/", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SLOW)
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", asked)
        page.goto(address + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def explained(page: Any) -> None:
    """Wait until the page shows the explanation of what it asks now."""
    playwright.expect(page.locator("#status")).to_have_text(re.compile("^explained"), timeout=SLOW)


def shows(page: Any, text: str) -> None:
    """Wait until the page explains this text."""
    playwright.expect(page.locator("#result p.text").first).to_have_text(text, timeout=SLOW)


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png")


def violations(page: Any) -> list[str]:
    page.evaluate(AXE.read_text("utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in result["violations"]]


def test_a_text_is_typed_methods_are_switched_and_a_word_is_changed(open_page: Open):
    page = open_page()
    explained(page)
    page.fill("#text", "A <script>document.title='obeyed'</script> dull film.")
    page.wait_for_selector("#result mark:has-text('dull')")
    assert page.title() == "Explore a text · salience"
    assert page.text_content("#result p.text") == "A <script>document.title='obeyed'</script> dull film."
    page.check("text=occlusion")
    page.wait_for_selector("#result h2:has-text('occlusion')")
    page.select_option("#layer", "all")
    page.wait_for_selector("#result table.heat")
    page.select_option("#layer", "")
    page.select_option("#target", "negative")
    page.wait_for_selector("#result header:has-text('logit of negative')")
    page.select_option("#level", "token")
    page.wait_for_selector("#result .special")
    page.select_option("#level", "word")
    page.select_option("#model", "sentiment_bilstm")
    page.wait_for_selector("#result .model:has-text('sentiment_bilstm')")
    page.select_option("#model", "sentiment")
    page.fill("#text", "A dull film.")
    shows(page, "A dull film.")
    page.click("#result mark:has-text('dull')")
    page.fill("#replacement", "wonderful")
    page.wait_for_selector("#edited :text('flips')")
    shot(page, "serve_edit")
    page.click("text=Keep the change")
    shows(page, "A wonderful film.")
    page.fill("#text", "A dull film.")
    shows(page, "A dull film.")
    page.click("#flip")
    page.click("#flips button >> nth=0")
    shows(page, "A film.")


def test_the_keyboard_alone(open_page: Open):
    page = open_page()
    explained(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.focus("#background")
    while page.evaluate("document.activeElement.tagName") != "MARK":
        page.keyboard.press("Tab")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert "alive" in page.text_content("#scores")
    assert "attention" in page.text_content("#scores")
    page.keyboard.press("Enter")
    page.keyboard.type("together")
    page.wait_for_selector("#edited table")
    page.keyboard.press("Enter")
    page.wait_for_selector("#result mark:has-text('together')")


def test_attention_heads(open_page: Open):
    page = open_page()
    explained(page)
    page.click("#attention summary")
    page.click("#maps button >> nth=4")
    page.wait_for_selector("#map table.heat")
    assert page.locator("#maps button").count() == 24
    assert violations(page) == []
    page.locator("#attention").scroll_into_view_if_needed()
    shot(page, "serve_heads")


def test_a_run_of_100_000_rows(open_page: Open):
    page = open_page("/run?run=out/large")
    assert "100,000 texts match." in page.text_content("main")
    shot(page, "serve_run")
    page.fill("#search", "99999")
    page.click("main button:has-text('Show')")
    page.wait_for_selector(":text('1 text matches.')")
    page.goto(page.url.partition("?")[0] + "?run=out/large&sort=disagreement")
    page.click("text=next →")
    page.wait_for_selector(":text('51 to 100')")
    assert violations(page) == []
    page.click("tbody a >> nth=0")
    page.wait_for_selector("article.salience")
    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 380])
def test_axe_finds_nothing_in_either_scheme_on_a_desk_or_a_phone(open_page: Open, scheme: str, width: int):
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    explained(page)
    page.hover("#result mark >> nth=2")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shot(page, "serve_explore" if (scheme, width) == ("light", 1100) else f"serve_{scheme}_{width}")


def test_axe_finds_nothing_on_the_other_pages(open_page: Open):
    page = open_page("/compare")
    page.wait_for_selector("#result article")
    assert violations(page) == []
    shot(page, "serve_compare")
    base = page.url.removesuffix("/compare")
    for path in ("/runs", "/reports", "/jobs", "/api", "/run/words?run=out/large", "/report?name=out/evaluation.html"):
        page.goto(base + path)
        assert violations(page) == [], path


def test_a_job_is_followed_to_its_result(open_page: Open):
    page = open_page("/jobs")
    page.fill("#texts", "A fine film.\nA dull film.")
    page.select_option("#work", "explain")
    page.click("#start button")
    page.click("#jobs a:text('show')")
    page.frame_locator("iframe").locator("mark").first.wait_for()


def test_an_answer_and_the_words_that_made_it(open_page: Open):
    page = open_page("/answers")
    page.fill("#prompt", "The cast is <b>fine</b>. The plot drags on.")
    page.fill("#tokens", "4")
    page.click("#question button[type=submit]")
    page.wait_for_selector("#result article")
    page.click("#result mark >> nth=0")
    assert page.evaluate("document.activeElement.tagName") == "MARK"
    assert page.locator("#result b:text-is('fine')").count() == 0
    assert violations(page) == []
    shot(page, "serve_answer")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_saved_reports_open_from_disk_in_either_scheme(browser: Any, folder: Path, scheme: str, width: int):
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    page, requests = context.new_page(), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    for name in ("evaluation", "training"):
        page.goto(f"file://{folder / name}.html")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        paper = page.evaluate("getComputedStyle(document.querySelector('.chart')).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(27, 30, 35)")
        assert violations(page) == [], name
        shot(page, f"report_{name}_{scheme}_{width}")
    context.close()
    assert [url for url in requests if not url.startswith("file://")] == []
