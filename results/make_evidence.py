"""Writes the table of evidence that comes with LongCA, from the records of H200s in this folder.

python results/make_evidence.py            # write it
python results/make_evidence.py --check    # compare it with what is there; exit code 1 where they differ
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longca.plugins import registry
from longca_advice.evidence import Row, to_lines
from longca_advice.from_records import verified, with_observed
from longca_bench.suites.suite import load_suite

RESULTS = Path(__file__).parent
TABLE = RESULTS.parent / "core" / "src" / "longca_advice" / "evidence.jsonl"

#: Runs that no prediction is to be learnt from, each with the reason.
LEFT_OUT = {
    "h200/distributed/chunked32k": "an earlier schedule: transfers of full masks beside the kernel",
    "h200/cudnn/blocks64": "cut short after one share of blocks",
    "h200/advice/problems": "problems that predictions were held against; they stay unseen",
}


#: Runs whose shortest calls are left out, with the seconds from which calls are taken. Calls of 1 K to 4 K tokens take
#: as long as the host takes to launch them, and that differed by three times between calls that compute as much.
FROM_SECONDS = {"h200/advice/short": 5e-4}

#: Kernels and forms of a run that no prediction is learnt from. fa3 computes layers otherwise since the runs before it.
#: Its calls at 128 K were not measured since, and predictions from both ways of computing are further off.
PARTS_LEFT_OUT = {"h200/dense/run8k-32k": ("fa3", "layers")}


def rows() -> Iterator[Row]:
    """The rows of all runs, run by run."""
    quick = load_suite("quick").sweep[0].factors
    found: list[tuple[Row, dict[str, Any]]] = []
    for file in sorted(RESULTS.glob("h200/*/*/records.jsonl")):
        name = file.parent.relative_to(RESULTS).as_posix()
        if name in LEFT_OUT:
            continue
        early = quick if name in ("h200/core/quick", "h200/core/turns") else {}
        least = FROM_SECONDS.get(name, 0.0)
        pairs = verified(file.parent, f"results/{name}", early)
        found += (pair for pair in pairs if pair[0].seconds >= least and not is_left_out(name, pair[1]))
    yield from with_observed(found, registry())


def is_left_out(run: str, record: dict[str, Any]) -> bool:
    """Whether no prediction is learnt from a record of a run."""
    return run in LEFT_OUT or (record["kernel"], record["form"]) == PARTS_LEFT_OUT.get(run)


def main() -> int:
    """Writes or checks the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    text = "".join(line + "\n" for line in to_lines(rows()))
    if not check:
        TABLE.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{len(text.splitlines())} lines, {len(text) / 1e3:.0f} kB\n")
        return 0
    same = TABLE.read_text(encoding="utf-8") == text
    sys.stdout.write("the table is as the records say\n" if same else "the table differs; write it again\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
