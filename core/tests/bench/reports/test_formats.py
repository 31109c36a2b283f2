import csv
import json
import sys

import pytest

from longca.errors import MissingPackageError, RequestError, UnknownNameError
from longca_bench.measuring.records import Record
from longca_bench.reports.formats import checked_formats, write_reports
from longca_bench.reports.markdown import escaped, page_of
from longca_bench.reports.rows import Rows

from .runs import ENVIRONMENT, record

RECORDS = (
    record(),
    record("sdpa", time=5e-4, peak_bytes=2**20),
    record("flex", status="error", message='a | b, "c"\n<script> *x* `y` [z](w)'),
    record("far", status="unsupported"),
    record("quick", status="suspect", time=1e-9),
)


def test_csv_has_a_row_a_record(tmp_path):
    (path,) = write_reports(Rows.of(RECORDS), tmp_path, ["csv"])
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == [each.kernel for each in RECORDS]
    assert set(Record.model_fields) <= set(rows[0])
    assert rows[2]["message"] == RECORDS[2].message
    assert (rows[2]["median"], rows[2]["samples_median"], rows[2]["samples_count"]) == ("", "", "0")
    assert json.loads(rows[0]["samples"]) == list(RECORDS[0].samples)
    figures = [float(rows[0][f"samples_{name}"]) for name in ("count", "p10", "median", "p90")]
    assert figures == pytest.approx([11, 0.996e-3, 1e-3, 1.004e-3])


def test_parquet_has_the_same_with_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(*write_reports(Rows.of(RECORDS), tmp_path, ["parquet"]))
    assert [row["message"] for row in table.to_pylist()] == [each.message for each in RECORDS]
    assert [row["median"] for row in table.to_pylist()] == [each.median for each in RECORDS]
    assert json.loads(table.to_pylist()[0]["samples"]) == list(RECORDS[0].samples)
    kinds = {name: str(table.schema.field(name).type) for name in ("seqlen", "median", "kernel", "plan_seconds")}
    assert kinds == {"seqlen": "int64", "median": "double", "kernel": "large_string", "plan_seconds": "double"}
    only_failures = parquet.read_table(*write_reports(Rows.of(RECORDS[2:4]), tmp_path, ["parquet"]))
    assert str(only_failures.schema.field("median").type) == "double"


def test_markdown_has_tables_failures_and_environment():
    page = page_of(Rows.of(RECORDS, ENVIRONMENT))
    assert (
        "| `causal` | 1 K | 50.0% | 25% | 1.00 / 0.105 | **0.500 / 0.210** | ERROR | 0.0000? / 104858 | sdpa |" in page
    )
    assert "? marks a time that is not believed" in page
    assert r"| error | `flex` | `causal` | 1 | a \| b, " in page
    assert r"\<script\> \*x\* \`y\` \[z\](w) |" in page
    assert "| unsupported | `far` | `causal` | 1 |" in page
    assert "| device.name | Some CPU |" in page
    assert "Not recorded" in page_of(Rows.of(RECORDS))
    widths = {line.replace(r"\|", "").count("|") for line in page.split("## Results")[1].split("##")[0].splitlines()}
    assert widths <= {0, 10}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("causal_document", "causal_document"),
        ("_x_ a|b", r"\_x\_ a\|b"),
        ("\x1b[31m\nnext", r"\\x1b\[31m next"),
        ("\\|", r"\\\|"),
    ],
)
def test_escaping(text, shown):
    assert escaped(text) == shown


def test_formats_are_checked(tmp_path, monkeypatch):
    assert checked_formats(["csv", "terminal", "csv"]) == ["csv", "terminal"]
    with pytest.raises(UnknownNameError, match="Did you mean parquet"):
        checked_formats(["parket"])
    (tmp_path / "file").touch()
    rows = Rows.of(RECORDS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install .*core\[parquet\]"):
        write_reports(rows, tmp_path, ["parquet"])
    with pytest.raises(RequestError, match="--out"):
        write_reports(rows, tmp_path / "file" / "x", ["csv"])
    assert write_reports(rows, tmp_path / "none", ["terminal"]) == []
    assert not (tmp_path / "none").exists()
