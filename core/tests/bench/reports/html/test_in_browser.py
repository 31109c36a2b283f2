"""The report in a real browser: what a reader sees and can do."""

import os
import shutil
from pathlib import Path

import pytest

from longca_bench.reports.html.page import write_html
from longca_bench.reports.rows import Rows
from longca_bench.reports.runs import Run

from ..runs import ENVIRONMENT, record

pytestmark = pytest.mark.xdist_group("browser")
HOSTILE = '\'><script>window.hacked=1</script><img src=x onerror="window.hacked=1"></script><!--${window.hacked=1}'


_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: requirements-dev.txt")
    path = os.environ.get("LONGCA_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("there is no browser: apt-get install chromium, or set LONGCA_CHROMIUM to the path of one")
    with playwright.sync_playwright() as driver:
        # A container runs its tests as root, where Chromium's sandbox does not start.
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a report of runs. A test fails where the page logs an error or asks for anything but its own file."""
    contexts, problems = [], []

    def open_report(*runs, width=1280):
        file = write_html(Rows.of_runs(runs), tmp_path / f"report{len(contexts)}.html")
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda asked: problems.append(asked.url) if asked.url != file.as_uri() else None)
        page.goto(file.as_uri())
        # The page's security policy forbids the evaluated text of `wait_for_function`.
        page.locator("html[data-ready]").wait_for(state="attached")
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert problems == []


def run(name="one", faster=1.0, kernels=("quick", "slow")):
    """The first kernel is twice as fast as the second on causal masks, both tie on full ones, and `broken` fails."""
    records = [
        record(kernel, seqlen, time=seqlen * 1e-6 * factor / faster, pattern=mask, direction=direction,
               mask_digest=f"{mask}-{seqlen}", peak_bytes=2**20 * seqlen)
        for direction in ("forward", "backward")
        for mask, factors in (("causal", (1, 2)), ("full", (1, 1.0001)))
        for seqlen in (1024, 2048, 4096)
        for kernel, factor in zip(kernels, factors, strict=True)
    ]  # fmt: skip
    broken = record("broken", status="oom", message="memory ran out", advice="Take shorter masks.")
    return Run(Path(name), (*records, broken), ENVIRONMENT)


def test_charts_are_drawn_and_follow_the_filters(opened):
    page = opened(run())
    charts = page.locator("main .charts figure svg")
    page.locator("#memory figure:nth-of-type(2) svg").wait_for(state="attached")
    assert charts.count() == 6, "throughput, profile and memory of two directions"
    assert page.locator("#throughput figure").first.locator("svg text", has_text="causal").count() == 1
    assert page.locator("#count").inner_text().startswith("25 of 25 cases")
    page.locator("#filters select[name=mask]").select_option("full")
    page.locator("#filters select[name=direction]").select_option("forward")
    assert page.locator("#count").inner_text().startswith("6 of 25 cases")
    page.locator("#memory figure svg").wait_for(state="attached")
    assert page.locator("#throughput figure").count() == 1
    assert page.locator("#throughput svg text", has_text="causal").count() == 0
    page.locator("#filters select[name=kernel]").select_option("broken")
    assert "No case of this selection has a time" in page.locator("#throughput").inner_text()


def test_a_line_goes_over_the_lengths_of_one_run_and_through_the_median_of_draws(opened):
    draws = [record("quick", 1024, time=time, seed=2, case=str(time), mask_digest="causal-2") for time in (2e-3, 3e-3)]
    page = opened(Run(Path("one"), (*run().records, *draws), ENVIRONMENT), run("two", faster=2))
    page.locator("#memory figure:nth-of-type(2) svg").wait_for(state="attached")
    lines = page.locator("#throughput figure").first.locator(".mark-line path")
    paths = [lines.nth(place).get_attribute("d") for place in range(lines.count())]
    assert [path.count("L") for path in paths] == [2] * 8, "two masks, two kernels, two runs: three lengths each"


def test_a_case_opens_by_keyboard_with_samples_and_environment(opened):
    page = opened(run())
    cell = page.locator("#cases tbody button").first
    cell.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    dialog.locator("svg").wait_for()
    dialog.locator("summary", has_text="Environment").click()
    for expected in ("quick on causal", "11 samples", "packages.torch", "2.13.0"):
        assert expected in dialog.inner_text()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.locator("#cases tbody button", has_text="oom").click()
    assert "memory ran out Take shorter masks." in dialog.inner_text()


def test_hostile_text_stays_text(opened):
    hostile = run(HOSTILE, kernels=(HOSTILE, f"{HOSTILE}2"))
    odd = record(HOSTILE, status="error", message=HOSTILE, advice=HOSTILE, pattern=HOSTILE)
    page = opened(Run(hostile.folder, (*hostile.records, odd), {HOSTILE: HOSTILE}), run())
    page.locator("#cases tbody button").first.click()
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    assert (page.locator("script").count(), page.locator("img").count()) == (3, 0)
    for place in ("h1", "#answer td", "#cases td", "#failures td", "#runs td", "dialog h2"):
        assert "window.hacked=1" in " ".join(page.locator(place).all_inner_texts()), place


def test_a_phone_scrolls_no_page_sideways(opened):
    page = opened(run(), run("two"), width=360)
    page.locator("#memory figure svg").first.wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#cases tbody button").first.click()
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 360
