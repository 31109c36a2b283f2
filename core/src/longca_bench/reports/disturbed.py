"""The cases of a run that were measured on a busy machine, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from longca_bench.measuring.records import Record
from longca_bench.reports.words import counted

__all__ = ["busy_sentence"]


def busy_sentence(records: Sequence[Record]) -> str:
    """How many cases the machine disturbed, and by what. Empty if there are none."""
    found = [(record, record.machine["why"]) for record in records if record.machine and record.machine["busy"]]
    if not found:
        return ""
    first, why = found[0]
    case = f"{first.kernel} {first.pattern} {first.seqlen} {first.direction}"
    count = f"{counted(len(found), 'case')} of {len(records)}"
    return f"the machine was busy in {count}, such as {case}: {why}. --wait-idle SECONDS waits for a quiet moment"
