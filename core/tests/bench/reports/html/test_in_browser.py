"""The report in a real browser: what a reader sees and can do."""

from pathlib import Path

import pytest

from longca_bench.measuring.records import Record
from longca_bench.reports.runs import Run

from ..runs import ENVIRONMENT, record
from .conftest import wait_until_ready

pytestmark = pytest.mark.xdist_group("browser")

HOSTILE = (
    '\'><script>window.hacked=1</script><img src=x onerror="window.hacked=1"></script><!--\u202e\x07${window.hacked=1}'
)
SHOWN = HOSTILE.replace("\u202e", "\\u202e").replace("\x07", "\\x07")


def case(kernel, seqlen, time, mask="causal", direction="forward", **fields):
    fields = {"mask_digest": f"{mask}-{seqlen}", **fields}
    return record(
        kernel,
        seqlen,
        time=time,
        pattern=mask,
        direction=direction,
        peak_bytes=2**20 * seqlen,
        **fields,
    )


def run(name="one", faster=1.0, **environment):
    """`quick` is twice as fast as `slow` on causal masks, both tie on full ones, and `broken` fails."""
    records = [
        case(kernel, seqlen, seqlen * 1e-6 * factor / faster, mask, direction)
        for direction in ("forward", "backward")
        for mask, factors in (("causal", (1, 2)), ("full", (1, 1.0001)))
        for seqlen in (1024, 2048, 4096)
        for kernel, factor in zip(("quick", "slow"), factors, strict=True)
    ]
    records.append(case("broken", 1024, 1, status="oom", message="memory ran out", advice="Take shorter masks."))
    records.append(case("broken", 2048, 1, status="unsupported", message="takes no causal masks"))
    return Run(Path(name), tuple(records), {**ENVIRONMENT, **environment})


def test_it_opens_with_the_answer(opened):
    report = opened(run())
    rows = report.page.locator("#answer table.answer").first.locator("tbody tr:not(.more)")
    causal, full = (" ".join(text.split()) for text in rows.all_inner_texts())
    assert causal.startswith("causal 1 K to 4 K quick")
    assert "2.00× (2.00–2.00) over slow sure" in causal
    assert "tie" in full
    assert "ties with" in full
    assert report.text("#answer .lead") == "quick is fastest in 1 of 2 rows; 1 row is a tie."
    assert report.page.locator("main section").first.get_attribute("id") == "answer"


def test_a_row_opens_its_ranking_and_the_command(opened):
    report = opened(run())
    button = report.page.locator("#answer tbody button").first
    assert button.get_attribute("aria-expanded") == "false"
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    row = report.page.locator("#answer tr.more").first
    assert "longca run causal --kernel quick --seqlen 1024" in row.inner_text()
    assert row.locator("table tbody tr").count() == 6
    button.click()
    assert not row.is_visible()


def test_charts_are_drawn_and_described(opened):
    report = opened(run())
    report.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    report.page.locator("main .chart:not(:has(svg))").first.wait_for(state="detached")
    charts = report.page.locator("main .chart")
    # Two directions: two masks, a profile and memory each.
    assert charts.count() == 8
    for chart in charts.all():
        assert chart.get_attribute("role") == "img"
        assert chart.get_attribute("aria-label")
        assert chart.locator("svg path[fill]").count() >= 2


def test_a_cell_opens_its_case_by_keyboard(opened):
    page = opened(run()).page
    cell = page.locator("#cells tbody button").first
    cell.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    text = dialog.inner_text()
    for expected in (
        "quick on causal",
        "11 samples",
        "longca run causal --kernel quick",
        "Environment of the run",
        "package",
    ):
        assert expected in text
    dialog.locator("svg").wait_for()
    dialog.locator("summary", has_text="Environment").click()
    assert "2.13.0" in dialog.inner_text()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert cell.evaluate("node => node === document.activeElement")


def test_every_part_follows_the_filters_by_keyboard(opened):
    page = opened(run()).page
    page.locator("#filters button", has_text="Kernel").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('label').textContent") == "quick"
    page.keyboard.press("Space")
    assert page.locator("#filters [role=status]").inner_text() == "14 cases of 26"
    for section in ("answer", "throughput", "memory", "cells"):
        text = page.locator(f"#{section}").inner_text()
        assert "slow" in text, section
        assert "quick" not in text, section
    assert "no rival" in page.locator("#answer").inner_text()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent").startswith("Kernel")
    page.locator("#filters button", has_text="Reset").click()
    assert page.locator("#filters [role=status]").inner_text() == "26 cases of 26"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("field", "value", "left"),
    [("Mask", "full", 14), ("Length", "1 K", 17), ("Direction", "backward", 14), ("Kernel", "broken", 24)],
)
def test_a_filter_leaves_out_what_it_names(opened, field, value, left):
    page = opened(run()).page
    page.locator("#filters .row button", has_text=field).click()
    page.locator("#filters fieldset:not([hidden]) label", has_text=value).locator("input").uncheck()
    assert page.locator("#filters [role=status]").inner_text() == f"{left} cases of 26"


def test_nothing_selected_says_so(opened):
    page = opened(run()).page
    page.locator("#filters .row button", has_text="Mask").click()
    page.locator("#filters fieldset:not([hidden]) button", has_text="None").click()
    assert "No case of this selection has a time" in page.locator("#answer").inner_text()
    assert "No case is in this selection" in page.locator("#cells").inner_text()


def test_heads_and_devices_are_apart(opened):
    records = [case("quick", 1024, 1e-3, device=device, heads_q=heads) for device in ("A", "B") for heads in (4, 8)]
    page = opened(Run(Path("one"), tuple(records), None)).page
    assert page.locator("#filters .row > button").all_inner_texts() == ["Heads all 2", "Device all 2", "Reset"]
    assert page.locator("#answer h3").all_inner_texts() == ["Forward, A", "Forward, B"]


def test_failures_have_their_message_and_advice(opened):
    page = opened(run()).page
    text = page.locator("#failures").inner_text()
    for expected in ("1 case failed", "oom", "memory ran out", "Take shorter masks.", "1 case refused"):
        assert expected in text
    page.locator("#failures summary").click()
    assert "takes no causal masks" in page.locator("#failures").inner_text()


def test_two_runs_are_overlaid_and_compared(opened):
    other = run("two", faster=1.25, python="3.12.0")
    page = opened(run(), other).page
    text = " ".join(page.locator("#compare").inner_text().split())
    assert (
        "A is one, B is two. B is 1.25× as fast as A (1.25–1.25) in the geometric mean over 24 cases: B faster in 24."
        in text
    )
    assert "The runs were not made alike: python differ" in text
    assert "3.12.0" in text
    assert page.locator("#throughput [aria-label='Lines of runs'] li").all_inner_texts()[:2] == ["one", "two"]


def test_runs_on_two_devices_share_charts_and_not_answers(opened):
    runs = [
        Run(Path(name), tuple(case("quick", seqlen, 1e-3, device=name) for seqlen in (1024, 2048)), ENVIRONMENT)
        for name in ("A", "B")
    ]
    page = opened(*runs).page
    assert page.locator("#answer h3").all_inner_texts() == ["Forward, A", "Forward, B"]
    assert page.locator("#throughput figure").count() == 1
    assert page.locator("#throughput [aria-label='Lines of runs'] li").all_inner_texts() == ["A", "B"]
    assert "over 2 cases: no difference shown in 2" in " ".join(page.locator("#compare").inner_text().split())


def test_kernels_of_other_runs_are_not_compared(opened):
    first = Run(Path("one"), (case("quick", 1024, 1e-3),), ENVIRONMENT)
    second = Run(Path("two"), (case("slow", 1024, 2e-3),), ENVIRONMENT)
    page = opened(first, second).page
    assert "no rival" in page.locator("#answer table").inner_text()
    assert "no case in common" in page.locator("#compare").inner_text()


def test_strategies_have_their_share_of_one_device(opened):
    about = {
        "kernel": "fa3",
        "world_size": 4,
        "mesh": "ring=4",
        "placement": "auto",
        "placed": "zigzag",
        "alone_seconds": 1e-3,
    }
    records = [
        case(seqlen=4096, time=time, strategy=name, **about) for name, time in (("ring", 1.25e-3), ("ulysses", 2e-3))
    ]
    page = opened(Run(Path("one"), tuple(records), ENVIRONMENT)).page
    row = " ".join(page.locator("#answer tbody tr").first.inner_text().split())
    assert row.startswith("causal 4 K ring auto with fa3")
    assert "80 %" in row
    page.locator("#cells tbody button").first.click()
    assert "--strategy ring --placement auto --nproc 4" in page.locator("dialog").inner_text()


def test_hostile_text_stays_text(opened):
    texts = [name for name, field in Record.model_fields.items() if field.annotation in (str, str | None)]
    hostile = {name: HOSTILE for name in texts if name not in ("status", "direction")}
    records = [
        record(
            time=time,
            **{**hostile, "kernel": f"{HOSTILE}{time}", "world_size": 2, "factors": {HOSTILE: 1}},
            gpu={"throttle": [HOSTILE]},
        )
        for time in (1e-3, 2e-3)
    ]
    records.append(record(status="error", **hostile, factors={HOSTILE: 1}))
    runs = [
        Run(Path(f"{HOSTILE}{number}"), tuple(records), {HOSTILE: f"{HOSTILE}{number}", "device": HOSTILE})
        for number in range(2)
    ]
    report = opened(*runs)
    page = report.page
    report.settle()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.locator("#cells tbody button").first.click()
    page.wait_for_timeout(300)
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 3
    assert page.locator("img").count() == 0
    assert page.evaluate("document.compatMode") == "CSS1Compat"
    text = page.evaluate("document.body.textContent")
    assert "\u202e" not in text
    for place in ("h1", "#answer .lead", "#cells th", "#failures .message", "#runs td", "dialog h2", "dialog pre"):
        assert "window.hacked=1" in " ".join(page.locator(place).all_inner_texts()), place
    assert SHOWN in page.locator("#failures .message").first.inner_text()


@pytest.mark.parametrize("runs", [1, 2])
def test_a_phone_scrolls_no_page_sideways(opened, runs):
    page = opened(*(run(f"run{number}") for number in range(runs)), width=360).page
    page.locator("#answer tbody button").first.click()
    page.locator("#filters .row button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#cells tbody button").first.click()
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 360
    assert page.locator("#cells .scroll").evaluate("box => getComputedStyle(box).overflowX") == "auto"


def test_dark_mode_turns_page_and_charts(opened):
    colours = {}
    for scheme in ("light", "dark"):
        report = opened(run(), scheme=scheme)
        report.settle()
        labels = report.page.locator("main .chart svg text").first.evaluate("node => getComputedStyle(node).fill")
        paper = report.page.evaluate("getComputedStyle(document.body).backgroundColor")
        colours[scheme] = [sum(int(part) for part in text[4:-1].split(",")[:3]) for text in (paper, labels)]
    assert colours["light"][0] > 600 > colours["light"][1]
    assert colours["dark"][0] < 200 < colours["dark"][1]


def test_print_opens_what_is_folded_and_has_every_case(opened):
    page = opened(run(), scheme="dark").page
    assert page.locator("main details[open]").count() == 0
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("main details:not([open])").count() == 0
    assert page.locator("#print-cells tbody tr").count() == 26
    assert "longca run full --kernel" in page.locator("#print-cells pre").inner_text()
    assert not page.locator("#filters").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("main details[open]").count() == 0


def test_controls_have_names_and_tables_heads(opened):
    page = opened(run(), run("two")).page
    every = "[...document.querySelectorAll({!r})].every((node) => {})".format
    named = "node.textContent.trim() || node.closest('label')?.textContent.trim()"
    assert page.evaluate(every("button, select, input, a, summary", named))
    assert page.evaluate(every("table", "node.caption && node.querySelector('thead th[scope=col]')"))
    assert page.evaluate(every(".scroll", "node.tabIndex === 0 && node.ariaLabel"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.slow
def test_10_000_records_load_in_3_seconds(opened):
    samples = tuple(1e-3 + i * 1e-6 for i in range(50))
    records = [
        case(
            f"kernel{kernel}",
            1024 * (1 + number % 25),
            1e-3,
            f"mask{number % 40}",
            samples=samples,
            seed=number // 1000,
            mask_digest=str(number),
        )
        for number in range(1000)
        for kernel in range(10)
    ]
    many = Run(Path("many"), tuple(records), ENVIRONMENT)
    page, times = opened(many).page, []
    for _ in range(3):  # the best counts, because other processes run beside the browser
        page.reload()
        wait_until_ready(page)
        times.append(int(page.evaluate("document.documentElement.dataset.ready")))
    assert min(times) < 3000
    page = opened(Run(Path("more"), (*records, case("kernel0", 512, 1e-3)), ENVIRONMENT)).page
    assert "samples of single calls are left out" in page.locator("#left-out").inner_text()
    page.locator("#cells tbody button").first.click()
    assert "left out of this page" in page.locator("dialog").inner_text()
