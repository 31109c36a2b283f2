"""The cases of a run that a busy machine disturbed or delayed, in a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from longca_bench.measuring.records import Record
from longca_bench.reports.words import counted

__all__ = ["busy_sentence", "wait_sentence"]


def busy_sentence(records: Sequence[Record]) -> str:
    """How many cases the machine disturbed, and by what. Empty if there are none."""
    found = [(record, record.machine["why"]) for record in records if record.machine and record.machine["busy"]]
    if not found:
        return ""
    first, why = found[0]
    case = f"{first.kernel} {first.pattern} {first.seqlen} {first.direction}"
    count = f"{counted(len(found), 'case')} of {len(records)}"
    return f"the machine was busy in {count}, such as {case}: {why}. --wait-idle SECONDS waits for a quiet moment"


def wait_sentence(records: Sequence[Record]) -> str:
    """How long cases waited beyond the first look, and how many were measured again. Empty if all measured at once."""
    machines = [record.machine for record in records if record.machine and "waited" in record.machine]
    found = [each for each in machines if each["waited"] > 1.0 or each["measured"] > 1]
    if not found:
        return ""
    seconds, again = sum(each["waited"] for each in found), sum(each["measured"] > 1 for each in found)
    repeated = f", and {counted(again, 'case')} of them measured again" if again else ""
    return f"{counted(len(found), 'case')} waited {seconds:.0f} s for a quiet machine{repeated}"
