"""Evidence from runs: verified records become rows, and lines that were edited by hand do not."""

import json

import pytest

from longca import masks
from longca.errors import RequestError
from longca.masks import Form
from longca_advice.evidence import Run
from longca_advice.from_records import recorded_transport, verified
from longca_advice.work import work_of

ENVIRONMENT = {
    "device": {"kind": "cuda", "name": "Some GPU", "capability": [9, 0], "memory": 80 * 10**9},
    "packages": {"torch": "2.0", "triton": None},
}

MASK = masks.sample("causal_document", 2048, seed=3)


def record(**fields):
    """A verified record of a forward on one device."""
    usual = {
        "case": "c0", "status": "ok", "kernel": "k", "form": "varlen", "direction": "forward",
        "pattern": "causal_document", "seqlen": 2048, "lengths": "auto", "seed": 3,
        "heads_q": 8, "heads_kv": 2, "head_dim": 64, "dtype": "bfloat16",
        "median": 0.01, "samples": [fields.get("median", 0.01)], "flops": 4,
        "findings": [{"tensor": name, "passed": True, "error": 0.0} for name in ("out", "dq", "dk", "dv")],
        "mask_digest": MASK.digest, "density": MASK.density,
        "distribution": "longca-k", "distribution_version": "1.0", "finished": "2026-11-22T12:00:00+00:00",
    }  # fmt: skip
    return {**usual, **fields}


def parallel(**fields):
    """A verified record of four ranks."""
    communication = {
        "all": {"calls": 6, "bytes": 9, "seconds": 2e-3},
        "send_recv": {"calls": 3, "bytes": 5, "seconds": 1e-3},
    }
    shared = {"strategy": "ring_p2p", "placed": "zigzag", "mesh": "ring=4", "communication": communication}
    return record(**{**shared, "rank_compute_seconds": [1e-3, 4e-3, 2e-3, 3e-3], **fields})


@pytest.fixture
def write(tmp_path):
    def write_run(*records, environment=ENVIRONMENT, folder="a run"):
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
        (path / "records.jsonl").write_text("".join(line + "\n" for line in lines), "utf-8")
        (path / "environment.json").write_text(json.dumps(environment), "utf-8")
        return path

    return write_run


def rows_of_folder(folder):
    return [row for row, _ in verified(folder)]


def refused(folder):
    with pytest.raises(RequestError) as error:
        rows_of_folder(folder)
    return str(error.value)


def test_a_verified_record_is_a_row_with_the_work_of_its_mask(write):
    folder = write(record())
    (row,) = rows_of_folder(folder)
    assert row.call_work == work_of(MASK, Form.VARLEN)
    assert (row.kernel, row.direction, row.seconds, row.mask) == ("k", "forward", 0.01, MASK.digest)
    assert (row.seqlen, row.heads_q, row.heads_kv, row.head_dim, row.dtype) == (2048, 8, 2, 64, "bfloat16")
    run = Run(run=str(folder), device="Some GPU", capability=(9, 0), memory=80 * 10**9, packages={"torch": "2.0"})
    assert row.run == run
    ((named, found),) = verified(folder, "its name")
    assert (named.run.run, found) == ("its name", record())


def test_the_latest_record_of_a_case_counts(write):
    again = [record(), record(case="c1"), record(median=0.02)]
    assert {row.case: row.seconds for row in rows_of_folder(write(*again))} == {"c0": 0.02, "c1": 0.01}
    for status in ("failed", "wrong", "oom"):
        assert rows_of_folder(write(record(), record(status=status, median=None))) == []


def test_sinks_are_no_evidence_of_calls_without(write):
    assert [row.case for row in rows_of_folder(write(record(sinks=True), record(case="c1", sinks=False)))] == ["c1"]


def test_a_call_with_a_soft_cap_is_evidence_of_others_with_one(write):
    folder = write(record(softcap=50.0), record(case="c1"))
    assert {row.case: row.capped for row in rows_of_folder(folder)} == {"c0": True, "c1": False}


@pytest.mark.parametrize(("direction", "kernel", "form"), [("forward", "one", "varlen"), ("backward", "two", "dense")])
def test_a_pairs_record_counts_for_the_half_that_was_timed(write, direction, kernel, form):
    folder = write(record(kernel="one+two", form="varlen + dense", direction=direction))
    (row,) = rows_of_folder(folder)
    assert row.kernel == kernel
    assert row.call_work == work_of(MASK, Form(form))


def test_several_ranks_are_a_row_without_work(write):
    (row,) = rows_of_folder(write(parallel()))
    assert (row.strategy, row.placed, row.mesh, row.ranks, row.work) == ("ring_p2p", "zigzag", "ring=4", 4, ())
    assert row.compute == 4e-3
    assert {kind: found.model_dump() for kind, found in row.communication.items()} == {
        "send_recv": {"calls": 3, "bytes": 5, "seconds": 1e-3}
    }


def test_pushes_count_the_bytes_that_leave_a_rank(write):
    pushes = {"push": {"calls": 8, "bytes": 99, "seconds": 1e-3}}
    moved = parallel(communication=pushes, sent_bytes={"push": [40, 50]}, moved_by="ring=copy_engine", mesh="ring=2")
    (row,) = rows_of_folder(write(moved))
    assert row.communication["push"].bytes == 50
    transports = [
        recorded_transport({**moved, "moved_by": way}) for way in ("ring=copy_engine", "ring=collectives", None)
    ]
    assert transports == ["copy_engine", "collectives", "collectives"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: "),
        ('{"status": "ok"}', "line 2: "),
        (record(pattern="cosal"), "line 2: "),
        (record(form="round"), "line 2: "),
        (record(median=1e-9), "TFLOP/s, more than the device can do"),
        (record(heads_q=0), "line 2: heads_q: "),
        (parallel(rank_compute_seconds=[]), "line 2: "),
    ],
)
def test_lines_that_are_no_records_are_refused_by_their_number(write, line, said):
    assert said in refused(write(record(), line))


def test_a_torn_last_line_is_no_record(write):
    folder = write(record(), record(case="c1", previous="1:9c1f"))
    file = folder / "records.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert [row.case for row in rows_of_folder(folder)] == ["c0"]


def test_a_mask_that_cannot_be_drawn_again_is_said(write):
    message = refused(write(record(seed=4)))
    assert "line 1: the mask cannot be drawn again; it is of other lengths or of another version of LongCA" in message


def test_factors_of_old_records_are_given_by_pattern(write):
    windowed = masks.sample("causal_sliding_window", 2048, window=100)
    old = record(pattern="causal_sliding_window", form="window", mask_digest=windowed.digest, density=windowed.density)
    assert "cannot be drawn again" in refused(write(old))
    given = {"causal_sliding_window": {"window": 100}}
    ((row, _),) = verified(write(old), factors=given)
    assert row.call_work == work_of(windowed, Form.WINDOW)
    # A record that names its factors has them all.
    new = {**old, "factors": {"window": 100}}
    ((row, _),) = verified(write(new), factors={"causal_sliding_window": {"window": 7}})
    assert row.mask == windowed.digest
