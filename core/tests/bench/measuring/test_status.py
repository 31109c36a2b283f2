"""Statuses: their strings, their advice and their failures."""

import pytest

from longca_bench.measuring.status import Status

from .test_records import record


def test_records_have_the_strings():
    assert [str(status) for status in Status] == [
        "ok", "unsupported", "wrong", "oom", "error", "timeout", "crashed", "suspect", "skipped",
    ]  # fmt: skip
    assert record(status="oom").status is Status.OOM
    assert record(status="oom").status == "oom"
    assert '"status":"oom"' in record(status=Status.OOM).model_dump_json()


@pytest.mark.parametrize("status", Status)
def test_each_has_a_meaning_and_a_failure_has_advice(status):
    assert status.meaning
    advice = status.advise("fa3", "", None)
    assert "{" not in advice
    assert bool(advice) == (status.is_failure and status is not Status.SKIPPED)


@pytest.mark.parametrize(
    ("status", "message", "form", "said"),
    [
        ("wrong", "dk", "dense", "`longca verify --kernel fa3+fa4`"),
        ("oom", "", "dense", "square of the length"),
        ("oom", "", "block_sparse", "larger blocks"),
        ("oom", "", None, "shorter sequence"),
        ("crashed", "the worker was ended by SIGKILL", None, "dmesg"),
        ("crashed", "the worker was ended by SIGSEGV", None, "compute-sanitizer"),
        ("timeout", "", None, "--timeout"),
        ("ok", "", None, ""),
    ],
)
def test_advice_fits_the_case(status, message, form, said):
    assert said in Status(status).advise("fa3+fa4", message, form)


def test_only_a_right_and_an_unsupported_case_are_no_failures():
    assert [status for status in Status if not status.is_failure] == [Status.OK, Status.UNSUPPORTED]
