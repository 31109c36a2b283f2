"""Training times from records: a forward and a backward of one kernel, or of a pair, on each draw of a mask.

A pair that was measured has a record of its backward. The time of another pair is combined of two medians: its first
kernel's forward, and its second kernel's backward, which takes the out and the log-sum-exp of any kernel.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from longca.manifests import Backward, Direction
from longca.manifests.pairs import join

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["COMBINED", "PROBLEM", "fastest", "training_times"]

#: The columns of one problem in one run, in both directions.
PROBLEM = ["run_number", "pattern", "mask_digest", "seed", "seqlen", "heads_q", "heads_kv", "head_dims", "dtype"]
#: The mark of a pair whose time is combined.
COMBINED = "*"


def training_times(rows: Rows) -> DataFrame:
    """Seconds and TFLOP/s of a forward and a backward together, on one device.

    The columns are those of `PROBLEM`, `kernel`, `is_pair`, `combined`, `seconds`, `tflops` and `busy`. A pair that
    failed, or whose kernels have no manifest here, is not combined.
    """
    about = [*PROBLEM, "kernel", "direction", "status", "form", "median", "flops", "busy"]
    known = rows.where(strategy=None).frame(about)
    known["paired"] = known["kernel"].map(lambda kernel: "+" in kernel).astype(bool)
    tried = set(known.loc[known["paired"], [*PROBLEM, "kernel"]].itertuples(index=False, name=None))
    last = known[known["status"] == "ok"].drop_duplicates([*PROBLEM, "direction", "kernel"], keep="last")
    forwards = last[(last["direction"] == "forward") & ~last["paired"]]
    both = forwards.merge(last[last["direction"] == "backward"], on=PROBLEM, suffixes=("", "_b"))
    first = both["kernel"]
    both["kernel"] = [b if "+" in b else join(f, b) for f, b in zip(first, both["kernel_b"], strict=True)]
    both["is_pair"] = both["kernel"] != first
    both["combined"] = both["is_pair"] & ~both["paired_b"]
    whole = [
        _composes(f, form, dtype, Direction.FORWARD)
        and _composes(b, form_b, dtype, Direction.BACKWARD)
        and key not in tried
        if combined
        else kernel.partition("+")[0] == f
        for f, form, b, form_b, dtype, combined, kernel, key in zip(
            first, both["form"], both["kernel_b"], both["form_b"], both["dtype"], both["combined"], both["kernel"],
            both[[*PROBLEM, "kernel"]].itertuples(index=False, name=None), strict=True,
        )
    ]  # fmt: skip
    both["seconds"] = both["median"] + both["median_b"]
    both["tflops"] = (both["flops"] + both["flops_b"]) / both["seconds"] / 1e12
    both["busy"] = (both["busy"] != "") | (both["busy_b"] != "")
    return both.loc[whole, [*PROBLEM, "kernel", "is_pair", "combined", "seconds", "tflops", "busy"]]


def fastest(rows: Rows) -> DataFrame:
    """The fastest single kernel and the fastest pair of each problem in training: their names and TFLOP/s.

    A problem with one choice has none, and neither has one with a time of a busy machine.
    `pair_gain` is the throughput of the pair over that of the single kernel, less 1.
    """
    known = training_times(rows)
    known = known[known.duplicated(PROBLEM, keep=False) & ~known.groupby(PROBLEM)["busy"].transform("any").astype(bool)]
    ranked = known.sort_values("seconds", kind="stable").drop_duplicates([*PROBLEM, "is_pair"])
    ranked["kernel"] += ranked["combined"].map({True: COMBINED, False: ""}).astype(object)
    sides = [
        ranked.loc[ranked["is_pair"] == is_pair, [*PROBLEM, "kernel", "tflops"]].rename(
            columns={"kernel": name, "tflops": f"{name}_tflops"}
        )
        for is_pair, name in ((False, "single"), (True, "pair"))
    ]
    found = sides[0].merge(sides[1], on=PROBLEM, how="outer")
    found["pair_gain"] = found["pair_tflops"] / found["single_tflops"] - 1
    return found


@cache
def _composes(kernel: str, form: str, dtype: str, direction: Direction) -> bool:
    """Whether all offers of a kernel's form have a log-sum-exp for other kernels, or a backward that takes theirs."""
    from longca.plugins import registry

    manifest = registry().kernels.get(kernel)
    offers = [] if manifest is None else [each for each in manifest.offers if each.form == form]
    asked = [each for each in offers if dtype in each.dtypes and direction in each.directions]
    if direction is Direction.FORWARD:
        return bool(asked) and not any(each.rough_lse or each.optional_lse for each in asked)
    return bool(asked) and all(each.backward is Backward.EXTERNAL for each in asked)
