"""Traffic: what a call communicates is seen at torch.distributed's operators, here of a world that sends nothing.

What really goes between ranks is in `bench/distributed/check_collectives`.
"""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from longca.errors import LongCAError
from longca.parallel.pushes import Push, tell, watched
from longca_bench.measuring import traffic
from longca_bench.measuring.traffic import Recorder, repeat, sent_by_kind

RANKS = 4

# Newer releases of PyTorch call it by the name that comes first here.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


@pytest.fixture
def _world():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    yield
    dist.destroy_process_group()


def shift(rows):
    """Sends some rows of 16 bytes to each neighbour, and receives as many."""
    sent = [dist.P2POp(dist.isend, torch.ones(rows, 4), peer) for peer in (0, 2)]
    received = [dist.P2POp(dist.irecv, torch.ones(rows, 4), peer) for peer in (0, 2)]
    return dist.batch_isend_irecv(sent + received)


@pytest.mark.usefixtures("_world")
def test_recorders_count_apart():
    with Recorder() as outer:
        shift(1)
        with Recorder() as inner:
            shift(10)
            all_gather(torch.ones(8, 4), torch.ones(2, 4))
    shift(100)
    assert sent_by_kind(inner.collectives) == {"p2p": 2 * 160, "all_gather": 3 * 32}
    assert sent_by_kind(outer.collectives) == {"p2p": 2 * 16 + 2 * 160, "all_gather": 3 * 32}
    assert [each.size for each in inner.collectives] == [320, 128]


@pytest.mark.usefixtures("_world")
def test_rows_of_its_own_do_not_leave_a_rank():
    with Recorder() as recorder:
        dist.all_to_all_single(torch.ones(4, 4), torch.ones(10, 4), [1] * 4, [1, 5, 2, 2])
        dist.all_to_all_single(torch.ones(8, 4), torch.ones(8, 4))
    assert [each.sent for each in recorder.collectives] == [5 * 16, 6 * 16]
    assert [each.size for each in recorder.collectives] == [160, 128]


@pytest.mark.usefixtures("_world")
def test_a_batch_is_one_collective_and_so_is_its_repetition():
    with Recorder() as recorder:
        shift(1)
        shift(1)
    first, second = recorder.collectives
    with Recorder() as again:
        second.start()
    assert [(each.kind, each.sent) for each in again.collectives] == [("p2p", 32)] == [(first.kind, first.sent)]


@pytest.mark.usefixtures("_world")
def test_memory_is_taken_when_something_is_begun_again(monkeypatch):
    taken, zeros = [], torch.zeros
    monkeypatch.setattr(traffic.torch, "zeros", lambda shape, **about: taken.append(shape) or zeros(shape, **about))
    with Recorder() as recorder:
        shift(3)
        all_gather(torch.ones(8, 4), torch.ones(2, 4))
    assert not taken
    for _ in range(2):
        for each in recorder.collectives:
            each.start()
    assert taken == [(3, 4), (3, 4), (8, 4), (2, 4)], "all sends share theirs, and so do all receives"


@pytest.mark.usefixtures("_world")
def test_what_is_not_counted_does_not_pass_in_silence():
    with Recorder(), pytest.raises(LongCAError, match=r"c10d::gather_ .* broadcast_ can"):
        dist.gather(torch.ones(1), None, dst=0)


def test_pushes_are_counted_and_repeated_on_scratch_memory():
    there, joined = torch.zeros(4, 2), []

    def push(source, leaves):
        tell(Push(source, leaves, there.copy_, lambda: joined.append(1)))

    source = torch.ones(2, 4).T
    with watched() as pushes, Recorder() as recorder:
        push(source, True)
        push(source, False)
    push(source, True)
    recorder.add(pushes)
    assert [(each.kind, each.size, each.sent) for each in recorder.collectives] == [("push", 32, 32), ("push", 32, 0)]
    assert dict(sent_by_kind(recorder.collectives)) == {"push": 32}
    there.fill_(7)
    repeat(recorder.collectives)
    assert not there.any(), "what is pushed again is scratch memory"
    assert source.all()
    assert joined == [1, 1]
