"""The page as a file, and its data."""

import json
import re
import sys
from pathlib import Path

import pytest

from longca.errors import MissingPackageError, RequestError
from longca_bench.reports.formats import write_reports
from longca_bench.reports.html import page
from longca_bench.reports.html.page import write_html
from longca_bench.reports.rows import Rows
from longca_bench.reports.runs import Run

from ..runs import ENVIRONMENT, record


def written(rows, folder):
    return write_html(rows, folder / "report.html").read_text(encoding="utf-8")


def data(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def column(text, name):
    found = data(text)["texts"][name]
    return [found["values"][code] for code in found["codes"]]


def test_the_file_loads_nothing_and_allows_its_own_scripts_alone(tmp_path):
    text = written(Rows.of([record()], ENVIRONMENT), tmp_path)
    outside = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!#)", outside)
    assert re.search(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[^ ]+' 'sha256-[^ ]+'\"", text)
    assert text.count("</script>") == 3
    assert len(text) < 1_500_000


def test_it_names_the_fastest_its_lead_and_how_sure_that_is(tmp_path):
    times = {"quick": 1e-3, "slow": 2e-3}
    records = [record(kernel, seqlen, time=time) for kernel, time in times.items() for seqlen in (1024, 2048)]
    text = written(Rows.of([*records, record("broken", status="oom", message="memory ran out")], ENVIRONMENT), tmp_path)
    answer = text.split('id="answer"')[1].split("</section>")[0]
    (said,) = re.findall(r"<p>(.*?)</p>", answer)
    assert said.startswith("causal: quick is the fastest, 2.00 times as fast as slow (95 % interval 1.99 to 2.01), in")
    (best, *_) = re.findall(r'<td class="[a-z]* best"><bdi>(.*?)</bdi>', answer)
    assert best.startswith("1.00 / ")
    assert "memory ran out" in text.split('id="failures"')[1]


def test_the_data_has_an_entry_for_each_record(tmp_path):
    rows = Rows.of([record(), record("sdpa", median=float("nan")), record("sdpa", 2048, "oom", message="why")])
    text = written(rows, tmp_path)
    found = data(text)
    assert column(text, "status") == ["ok", "ok", "oom"]
    assert found["numbers"]["median"] == [1e-3, None, None]
    assert found["numbers"]["problem"] == [0, 0, 1]
    speed, slow, fast = (found["numbers"][name][0] for name in ("speed", "slow", "fast"))
    assert 0.99 * speed < slow < speed < fast < 1.01 * speed
    assert (speed, found["unit"]) == (pytest.approx(record().tflops * 1e3, rel=1e-3), "GFLOP/s")
    assert [len(each) for each in found["samples"]] == [11, 11, 0]
    assert column(written(rows.where(kernel="sdpa"), tmp_path), "kernel") == ["sdpa", "sdpa"]


def test_two_runs_are_told_apart(tmp_path):
    runs = [Run(Path(path), (record(time=time),), ENVIRONMENT) for path, time in (("a/x", 2e-3), ("b/x", 1e-3))]
    assert column(written(Rows.of_runs(runs), tmp_path), "run") == ["a/x", "b/x"], "the folders have one name"


def test_text_of_records_is_no_markup(tmp_path):
    hostile = '"><script>alert(1)</script>\u202e'
    run = Run(Path(hostile), (record(hostile, pattern=hostile, message=hostile),), {hostile: hostile})
    text = written(Rows.of_runs([run]), tmp_path)
    assert "<script>alert" not in text
    assert "\u202e" not in text


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(RequestError, match="no record is left"):
        write_html(Rows.of([record()]).where(kernel="another"), tmp_path / "report.html")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot write to"):
        write_reports(Rows.of([record()]), tmp_path / "file" / "report.html", ["html"])
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingPackageError, match=r"pip install .*core\[report\]"):
        page._chart_library.__wrapped__()
