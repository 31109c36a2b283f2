"""A headless browser for the HTML report, or the reason why there is none."""

import os
import shutil

import pytest

from longca_bench.reports.html.page import write_html
from longca_bench.reports.rows import Rows

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


def wait_until_ready(page):
    """Waits by selector, because the page's security policy forbids the evaluated text of `wait_for_function`."""
    page.locator("html[data-ready]").wait_for(state="attached")


class Opened:
    """A report in a page, with all that went wrong in it."""

    def __init__(self, page, problems):
        self.page, self.problems = page, problems


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a report of runs. A test fails where the page logs an error or asks for anything but its own file."""
    pages = []

    def open_report(*runs, width=1280):
        file = write_html(Rows.of_runs(runs), tmp_path / f"report{len(pages)}.html")
        context = browser.new_context(viewport={"width": width, "height": 800})
        page, problems = context.new_page(), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda asked: problems.append(asked.url) if asked.url != file.as_uri() else None)
        page.goto(file.as_uri())
        wait_until_ready(page)
        pages.append((context, problems))
        return Opened(page, problems)

    yield open_report
    for context, problems in pages:
        context.close()
        assert problems == []
