"""A run's folder on a disk that is mounted read-only: a sentence, and the records there are still reported."""

import subprocess
import sys

import pytest

ONE = "run causal --seqlen 32 --heads 2:1 --head-dim 16 --dtype float32 --device cpu --direction forward --kernel naive"
#: Permissions do not bind root, a mount does. The mount is seen by this script alone.
SCRIPT = """
mount -t tmpfs none disk && cp -r made disk/made && mount -o remount,ro disk || exit 77
cd disk
exec "$@"
"""


@pytest.fixture
def on_the_disk(fakes):
    """Runs a command in a working folder on a read-only disk, where the folder `made` has a run."""
    (fakes.root / "disk").mkdir()
    (fakes.root / "made").mkdir()
    made = fakes.longca(*ONE.split(), "--out", "made")
    assert made.returncode == 0, made.stderr

    def ran(*arguments):
        command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", *arguments]
        try:
            done = subprocess.run(command, cwd=fakes.root, env=fakes.env, capture_output=True, text=True, timeout=300)
        except FileNotFoundError:
            pytest.skip("needs the command unshare")
        if done.returncode == 77 or done.stderr.startswith("unshare: "):
            pytest.skip(f"this user may mount no disk: {done.stderr.strip()}")
        return done

    return ran


@pytest.mark.exhaustive
def test_a_run_on_a_read_only_disk_is_refused_and_its_records_are_reported(on_the_disk):
    longca = (sys.executable, "-m", "longca")
    for options, folder in (
        ("", "runs/causal-"),
        ("--out new", "new"),
        ("--out made", "made"),
        ("--out made --resume", "made"),
    ):
        ran = on_the_disk(*longca, *ONE.split(), *options.split())
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
        assert ran.stderr.startswith(f"error: cannot write to {folder}")
        assert "Read-only file system. Choose another folder with --out" in ran.stderr
    ran = on_the_disk(*longca, "report", "made")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "1 case: 1 ok" in ran.stdout
