"""Runs of two ranks on a CPU, from the command line to the records."""

import statistics
import sys
import time

import pytest


def finished(toys, *options, **about):
    process = toys.start(*options, **about)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, output + errors
    return output, errors, toys.records()


@pytest.mark.slow
def test_records_of_two_ranks(toys):
    """On one host nothing listens beyond the loopback address meanwhile."""
    placements = [option for name in ("evenly", "lazily", "never") for option in ("--placement", name)]
    process, addresses = toys.start("--kernel", "naive", *placements, "--gpus", "2"), set()
    deadline = time.monotonic() + 600
    while len(toys.records()) < 2 and process.poll() is None and time.monotonic() < deadline:
        addresses |= toys.listens_on()
        time.sleep(0.1)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, output + errors
    assert addresses == {"0100007F"}, "127.0.0.1"
    records = toys.records()
    found = {(r["placement"], r["direction"]): r for r in records}
    assert len(found) == len(records) == 6
    assert {r["status"] for (placement, _), r in found.items() if placement != "never"} == {"ok"}
    for direction in ("forward", "backward"):
        check_refused(found["never", direction])
        check_measured(found["evenly", direction], direction)
        assert found["lazily", direction]["area_imbalance"] > 1.9 > found["evenly", direction]["area_imbalance"]
    assert errors.count("ok") == 4
    for word in ("2 ranks", "evenly", "lazily", "4 ok, 2 unsupported"):
        assert word in output


def check_refused(record):
    assert record["status"] == "unsupported"
    assert "nobody is ever placed so" in record["message"]
    assert record["median"] is None


def check_measured(record, direction):
    about = {name: record[name] for name in ("strategy", "placed", "world_size", "mesh", "seqlen")}
    assert about == {"strategy": "toy", "placed": "evenly", "world_size": 2, "mesh": "toy=2", "seqlen": 80}
    assert record["strategy_distribution"] == "toy 1.0"
    ranks, samples = record["rank_samples"], record["samples"]
    assert samples == [max(pair) for pair in zip(*ranks, strict=True)]
    assert record["median"] == pytest.approx(statistics.median(samples))
    assert record["tflops"] == pytest.approx(record["flops"] / 2 / record["median"] / 1e12)
    tensors = {"out", "lse"} if direction == "forward" else {"dq", "dk", "dv"}
    for findings in (record["findings"], record["alone_findings"]):
        assert tensors <= {finding["tensor"] for finding in findings}
        assert all(finding["passed"] for finding in findings)
    assert any(finding["tensor"].endswith("after timing") for finding in record["findings"])
    # Keys and values of 40 tokens, 2 heads of 16 in float32, from and to every rank; gradients of all 80 tokens.
    broadcast = 2 * 40 * 2 * 16 * 4 * 2
    reduced = 2 * 80 * 2 * 16 * 4 if direction == "backward" else 0
    expected = {"all_reduce": [reduced, reduced]} if reduced else {}
    assert record["sent_bytes"] == {**expected, "broadcast": [broadcast, broadcast]}
    assert record["communication"]["all"]["calls"] == (6 if reduced else 4)
    assert record["communication"]["all"]["bytes"] == broadcast + reduced
    for measured in record["communication"].values():
        assert measured["algbw"] == pytest.approx(measured["bytes"] / measured["seconds"] / 1e9)
    assert len(record["rank_compute_seconds"]) == 2
    assert record["hidden"] is None or 0 <= record["hidden"] <= 1  # None if it is lost in noise
    assert record["time_imbalance"] >= 1
    assert record["alone_seconds"] > 0
    assert record["abreast_seconds"] > 0
    assert len(record["rank_abreast_seconds"]) == 2
    assert record["plan_seconds"] > 0


@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_an_offer_says_of_its_lse_is_known_to_all(toys):
    """Without it, the log-sum-exp of the kernel alone and of the strategy would be wrong."""
    *_, records = finished(toys, "--kernel", "rough", "--mask", "causal", "--gpus", "2")
    assert [(r["dtype"], r["direction"], r["status"]) for r in records] == [
        ("bfloat16", direction, "ok") for direction in ("forward", "backward")
    ]
    for findings in (records[0]["findings"], records[0]["alone_findings"]):
        rough = [finding for finding in findings if finding["tensor"].startswith("lse")]
        assert rough
        assert all(finding["passed"] and finding["error"] > 1e-3 for finding in rough)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_under_torchrun_it_joins_the_job(toys):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--", "longca")
    output, errors, records = finished(toys, "--kernel", "naive", "--placement", "lazily", launcher=launcher)
    assert [(r["status"], r["world_size"], r["placed"]) for r in records] == [("ok", 2, "lazily")] * 2
    assert output.count("2 cases: 2 ok") == 1, "rank 0 alone prints"
    assert errors.count("[1/2]") == 1
    assert not toys.left()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_resumed_it_measures_what_is_left(toys):
    finished(toys, "--kernel", "naive", "--placement", "evenly", "--direction", "forward", "--gpus", "2")
    _, errors, records = finished(toys, "--kernel", "naive", "--placement", "evenly", "--gpus", "2", "--resume")
    assert "1 cases were measured before" in errors
    assert [r["direction"] for r in records] == ["forward", "backward"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --gpus, or start longca run under torchrun"),
        (("--gpus", "2", "--strategy", "toi"), "Did you mean toy"),
        (("--gpus", "2", "--placement", "evenlee"), "Did you mean evenly"),
        (("--gpus", "2", "--ab", "naive", "sdpa"), "leave it out, or --gpus"),
        (("--gpus", "2", "--strategy", "toy", "--mask", "full"), "unknown mask pattern of suite toys 'full'"),
        (
            ("--gpus", "2", "--kernel", "naive", "--mask", "causal"),
            "has kernel naive, mask causal together; leave",
        ),
    ],
)
def test_requests_that_are_wrong(toys, options, said):
    process = toys.start(*options)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 2
    assert said in errors
    assert not toys.out.exists()


def test_what_would_be_measured(toys):
    process = toys.start("--gpus", "3", "--seqlen", "80", "--kernel", "naive", "--direction", "forward", "--dry-run")
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    lines = [line for line in output.splitlines() if line.startswith("naive")]
    assert len(lines) == 4
    assert all("toy=3" in line for line in lines)
    assert sum("unsupported: nobody is ever placed so" in line for line in lines) == 1
    assert str(sys.executable) not in output
