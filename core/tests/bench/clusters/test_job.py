"""The job of a run: its time limit, its options of sbatch, its commands and its script."""

import shlex
import subprocess
from pathlib import Path

import pytest

from longca.errors import RequestError
from longca_bench.clusters.job import ClusterJob, minutes_of, named_option, sbatch_lines, slurm_time, unseen_folder
from longca_bench.clusters.script import sbatch_script
from longca_bench.clusters.submit import submit


def job(**about):
    known = {
        "name": "longca-quick", "arguments": ("run", "quick"), "out": Path("/shared/a folder"),
        "folder": Path("/shared"), "nodes": 1, "ranks": None, "gpus": 0, "minutes": 30, "options": {},
    }  # fmt: skip
    return ClusterJob(**{**known, **about})


@pytest.mark.parametrize(
    ("text", "minutes", "again"),
    [("90", 90, "0-01:30:00"), ("2:30:01", 151, "0-02:31:00"), ("1-01:00:00", 1500, "1-01:00:00")],
)
def test_time_limits(text, minutes, again):
    assert minutes_of(text) == minutes
    assert slurm_time(minutes) == again


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1:30", "give minutes, such as 90, or H:MM:SS"),
        ("soon", "give minutes"),
        ("-5", "give"),
        ("4", "needs 5 min"),
        ("9" * 23, "give at most 365 days"),
    ],
)
def test_time_limits_that_are_none(text, said):
    with pytest.raises(RequestError, match=said):
        minutes_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-q high", "give a long option of sbatch"),
        ("qos=", "give a long option"),
        ("comment=a\n#SBATCH --uid=0", "give a long option"),
        ("--nodes=3", "contradicts the job: take --nodes"),
        ("signal=TERM@9", "contradicts the job"),
        ("array=1-5", "it is one run, whose records have one folder"),
    ],
)
def test_options_of_sbatch_that_are_refused(text, said):
    with pytest.raises(RequestError, match=said):
        sbatch_lines([text])
    assert sbatch_lines(["--qos=high", "contiguous"]) == {"qos": "high", "contiguous": True}


@pytest.mark.parametrize("name", ["", "a b", " a", "a\n#SBATCH --uid=0"])
def test_names_that_are_none(name):
    with pytest.raises(RequestError, match="give the partition's name, or leave it out"):
        named_option("partition", name)
    assert named_option("partition", None) == {}
    assert named_option("account", "$(me)") == {"account": "$(me)"}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    pytest.importorskip("submitit")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"file/run: Not a directory. Choose another folder with --out"):
        submit(job(out=tmp_path / "file" / "run"), "local")


def test_one_node_starts_its_ranks_and_several_meet():
    assert job().command("h", "1", "2")[1:] == ["-P", "-m", "longca", "run", "quick"]
    assert job(ranks=8).command("h", "1", "2")[4:] == ["run", "quick", "--nproc", "8"]
    command = job(nodes=2, ranks=8).command("h", "1", "2")
    assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-endpoint=h:1", "--rdzv-id=2"} <= set(command)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_script_is_valid_whatever_the_names(nodes, tmp_path):
    arguments = ("run", "my suite.toml", "--kernel", "a'b", "$(touch bad)")
    text = sbatch_script(job(nodes=nodes, ranks=4, gpus=4, arguments=arguments, options={"exclusive": "user"}))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert text.index("--exclusive\n") < text.index("--exclusive=user\n"), "the later line counts"
    assert "--gpus-per-node=4" in text
    (line,) = (line for line in text.splitlines() if line.startswith("srun "))
    assert [word for word in shlex.split(line) if word in arguments] == list(arguments)
    assert ("OMP_NUM_THREADS" in text) == (nodes == 2)


def test_folders_of_this_host_alone_are_named(monkeypatch):
    mounts = "a / ext4 rw 0 0\nb /scratch\\040x tmpfs rw 0 0\nc /shared nfs4 rw 0 0\nd /shared/near fuse.sshfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: mounts)
    found = [unseen_folder(Path(path)) for path in ("/runs", "/scratch x/a", "/shared/a", "/shared/near/b")]
    assert found == ["ext4", "tmpfs", None, None]
