"""Small runs made by hand, for tests of what is made of them."""

import json
import re
from pathlib import Path

from longca_bench.measuring.records import Record
from longca_bench.measuring.status import Status
from longca_bench.reports.rows import Rows
from longca_bench.reports.runs import Run

#: Those of a forward and of a backward.
FINDINGS = tuple({"tensor": name, "passed": True, "error": None} for name in ("out", "dq", "dk", "dv"))
ENVIRONMENT = {"python": "3.11.7", "device": {"kind": "cpu", "name": "Some CPU"}, "packages": {"torch": "2.13.0"}}


def record(kernel="naive", seqlen=1024, status="ok", time=1e-3, **fields):
    samples = tuple(time * (1 + i / 1000) for i in range(-5, 6)) if status in ("ok", "suspect") else ()
    flops = seqlen**2 * 100
    about = {
        "case": f"{kernel}-{seqlen}-{fields.get('pattern')}-{fields.get('direction')}-{fields.get('mask_digest')}",
        "suite": "quick", "suite_version": 1, "suite_digest": "1" * 16, "status": Status(status), "kernel": kernel,
        "distribution": "longca-core", "distribution_version": "0.1.0", "device": "Some CPU", "pattern": "causal",
        "seqlen": seqlen, "lengths": "auto", "seed": 0, "heads_q": 4, "heads_kv": 2, "head_dim": 32,
        "dtype": "float32", "direction": "forward", "mask_digest": f"{seqlen:016x}", "area": 4096, "density": 0.5,
        "tile_efficiency": 0.25, "flops": flops, "samples": samples, "median": time if samples else None,
        "tflops": flops / time / 1e12 / (fields.get("world_size") or 1) if samples else None,
        "findings": FINDINGS if status == "ok" else (),
        "finished": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Record.model_construct(**{**Record.model_construct().__dict__, **about, **fields})


def write_run(folder, records, environment=ENVIRONMENT):
    folder.mkdir(parents=True)
    lines = [each.model_dump_json() for each in records]
    (folder / "records.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    return folder


def rows_of(*runs, environment=None):
    """The rows of runs in memory, each a list of records."""
    return Rows.of_runs([Run(Path(f"run{n}"), tuple(records), environment) for n, records in enumerate(runs)])


def cells(text, first):
    """The cells of a Markdown table's line that begins with a name."""
    (row,) = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", text, re.MULTILINE)
    return row.split(" | ")
