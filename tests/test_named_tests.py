"""Test files can be named on the command line in any order."""

from __future__ import annotations

import subprocess
import sys

from .imports import ROOT

#: Two files in one folder, and between them one of the folder above.
NAMED = ("bench/measuring/test_clocks.py", "test_errors.py", "bench/measuring/test_misbehaving.py")


def test_a_file_between_two_files_of_a_folder_takes_no_fixtures_from_them() -> None:
    files = [str(ROOT / "core" / "tests" / name) for name in NAMED]
    words = (sys.executable, "-m", "pytest", "--setup-plan", "-q", "-p", "no:cacheprovider", "-n", "0", "-k")
    ran = subprocess.run(
        (*words, "other_direction or errors", *files), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr
