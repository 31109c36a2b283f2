"""The time of an honest kernel beside each misbehaving kernel, over its time alone.

    python core/benchmarks/beside_misbehaving.py [--device cuda] [--most 40] [--kernel zeros ...]
        [--out results/cpu/beside_misbehaving.json]

One judge measures the honest kernel `naive` twice, then a misbehaving kernel in the direction in which it misbehaves,
and then `naive` again. The ratio of the last two times of `naive` is compared with that of the first two, which has
nothing between. A misbehaving kernel whose record is not what its table says is named, and is in neither. The file has
that record's message. An interrupt keeps what was measured until then.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from longca import plugins
from longca.manifests import Direction
from longca.manifests.devices import cpu_device, current_device
from longca.manifests.problem import Device
from longca.testing import MISBEHAVING, Misbehaviour, misbehaving_plugins
from longca_bench.measuring.options import Options
from longca_bench.measuring.records import Record
from longca_bench.measuring.runner import run_cases
from longca_bench.suites.case import Case
from longca_bench.suites.cases import Selection, expand
from longca_bench.suites.suite import load_suite

#: A misbehaving kernel that hangs is ended after this many seconds.
DEADLINE = 20.0
HONEST = "naive"


def cases(kernels: list[Misbehaviour], seqlen: int) -> Iterator[Case]:
    """Each misbehaving kernel's case, with two cases of the honest kernel before it and one after it."""
    chosen = Selection(patterns=("causal",), seqlens=(seqlen,))
    names = [*(kernel.name for kernel in kernels), HONEST]
    made = {(case.kernel, case.direction): case for case in expand(load_suite("quick"), names, chosen)}
    honest = made[HONEST, Direction.FORWARD]
    for kernel in kernels:
        yield from (honest, honest, made[kernel.name, kernel.direction], honest)


def measure(device: Device, seqlen: int, most: int, names: list[str]) -> dict[str, dict[str, object]]:
    """The honest kernel's times around each misbehaving kernel, or each of some names, and their ratios."""
    kernels = [each for each in MISBEHAVING if each.runs_on(device.kind) and (each.name in names or not names)]
    kernels = kernels[:: max(1, math.ceil(len(kernels) / most))]
    kept: list[Record] = []
    options = Options(deadline=DEADLINE)
    with suppress(KeyboardInterrupt):
        run_cases(load_suite("quick"), list(cases(kernels, seqlen)), device, plugins.registry(), kept.append, options)
    found = {}
    for kernel, first, second, bad, after in zip(kernels, *(kept[turn::4] for turn in range(4)), strict=False):
        times = [each.median or math.nan for each in (first, second, after)]
        ratios = {"alone": times[1] / times[0], "beside": times[2] / times[1]}
        said = [f"{each.status} {each.message}" for each in (first, second, after) if each.median is None]
        is_named = kernel.holds(bad.status, bad.message or "", bad.median)
        about = {"status": str(bad.status), "is_named": is_named, "seconds": times, **ratios}
        about |= {} if is_named else {"message": bad.message}
        found[kernel.name] = {**about, "honest_failures": said}
    return found


def main() -> None:
    """Measures, prints a summary, and writes all ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--most", type=int, default=1000, help="the most misbehaving kernels, spread over the table")
    parser.add_argument("--kernel", nargs="+", default=[], help="only these misbehaving kernels")
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LONGCA_HISTORY"] = str(Path(folder) / "history.jsonl")  # no evidence for the user's own calls
        os.environ["PYTHONPATH"] = str(misbehaving_plugins(Path(folder)))
        sys.path.append(os.environ["PYTHONPATH"])
        device = cpu_device() if arguments.device == "cpu" else current_device()
        found = measure(device, arguments.seqlen, arguments.most, arguments.kernel)
    if arguments.out:
        machine = {"device": str(device), "machine": platform.machine(), "cpus": os.cpu_count()}
        about = {**machine, "seqlen": arguments.seqlen}
        arguments.out.write_text(json.dumps({**about, "kernels": found}, indent=2) + "\n")
    for name, each in found.items():
        if each["honest_failures"]:
            print(f"beside {name} the honest kernel has no time: {each['honest_failures']}")
    named = [each for each in found.values() if each["is_named"]]
    print("not as the table says:", *(name for name, each in found.items() if not each["is_named"]))
    for name in ("alone", "beside"):
        ratios = [ratio for each in named if not math.isnan(ratio := float(str(each[name])))]
        low, *_, high = statistics.quantiles(ratios, n=20, method="inclusive")
        middle, mean = statistics.median(ratios), statistics.geometric_mean(ratios)
        print(f"{name}: {len(ratios)} ratios, median {middle:.3f}, mean {mean:.3f}, 5 % {low:.3f}, 95 % {high:.3f}")


if __name__ == "__main__":
    main()
