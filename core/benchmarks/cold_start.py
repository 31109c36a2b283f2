"""How long a listing takes in a fresh interpreter, in CPU and in wall time; and whether it imports torch.

    python core/benchmarks/cold_start.py [--runs 7] [--json]

Plugins are probed before the first run that counts: that happens once for each new distribution.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

COMMANDS = ("--version", "list-capabilities", "list-capabilities --json", "plugins", "doctor --no-timing")


def run(command: str) -> tuple[float, float]:
    """CPU and wall seconds of one run, its children's included."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "longca", *command.split()], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def imports_torch(command: str) -> bool:
    """Whether torch is among the modules that a command imports."""
    arguments = [sys.executable, "-X", "importtime", "-m", "longca", *command.split()]
    said = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True).stderr
    return any(line.rpartition("|")[2].strip() == "torch" for line in said.splitlines())


def measure(command: str, runs: int) -> dict[str, object]:
    """One command's figures, in seconds."""
    run(command)
    cpu, wall = zip(*(run(command) for _ in range(runs)), strict=True)
    return {
        "command": command,
        "cpu_median_s": round(statistics.median(cpu), 3),
        "cpu_worst_s": round(max(cpu), 3),
        "wall_median_s": round(statistics.median(wall), 3),
        "imports_torch": imports_torch(command),
    }


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [measure(command, asked.runs) for command in COMMANDS]
    if asked.json:
        print(json.dumps({"python": sys.version.split()[0], "cores": os.cpu_count(), "rows": rows}, indent=2))
        return
    print(f"{'command':28}{'CPU median':>12}{'CPU worst':>12}{'wall median':>13}  torch")
    for row in rows:
        figures = "".join(
            f"{row[name]:>{width}}"
            for name, width in (("cpu_median_s", 12), ("cpu_worst_s", 12), ("wall_median_s", 13))
        )
        print(f"{row['command']:28}{figures}  {'imported' if row['imports_torch'] else 'no'}")


if __name__ == "__main__":
    main()
