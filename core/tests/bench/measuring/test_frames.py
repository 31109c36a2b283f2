"""Frames: they are those of a `Connection`, have a bounded length, and wait for each part as the caller says."""

import os
import select
from multiprocessing import Pipe
from multiprocessing.reduction import recv_handle

import pytest

from longca_bench.measuring.frames import is_ready, receive, send, send_descriptor


class GaveUpError(Exception):
    """A part of a frame did not come in time."""


def wait_for(connection):
    def wait(way):
        if not is_ready(connection, way, 0.05):
            raise GaveUpError

    return wait


@pytest.fixture
def ends():
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [0, 1, 20_000, 100_000])
def test_a_connection_writes_what_is_received(ends, size):
    ours, theirs = ends
    theirs.send_bytes(b"x" * size)
    theirs.send_bytes(b"next")
    assert receive(ours, 2**20, wait_for(ours)) == b"x" * size
    assert receive(ours, 2**20, wait_for(ours)) == b"next"


def test_a_connection_reads_what_is_sent(ends):
    ours, theirs = ends
    send(ours, {"a": [1, 2.5]}, wait_for(ours))
    read, write = os.pipe()
    send_descriptor(ours, read, wait_for(ours))
    assert theirs.recv() == {"a": [1, 2.5]}
    found = recv_handle(theirs)
    os.write(write, b"same")
    assert os.read(found, 4) == b"same"
    for fd in (read, write, found):
        os.close(fd)


@pytest.mark.parametrize("part", [b"", b"\0\0", b"\0\0\0\5", b"\0\0\0\5four"])
def test_a_part_of_a_frame_is_waited_for_and_no_longer(ends, part):
    ours, theirs = ends
    os.write(theirs.fileno(), part)
    with pytest.raises(GaveUpError):
        receive(ours, 2**20, wait_for(ours))


@pytest.mark.parametrize("part", [b"", b"\0\0", b"\0\0\0\5four"])
def test_a_frame_that_is_cut_off_is_an_end(ends, part):
    ours, theirs = ends
    os.write(theirs.fileno(), part)
    theirs.close()
    with pytest.raises(EOFError):
        receive(ours, 2**20, wait_for(ours))


@pytest.mark.parametrize("length", [2**20 + 1, 2**31 - 1, -1])
def test_a_length_that_is_not_allowed_is_refused_before_the_frame_is_read(ends, length):
    ours, theirs = ends
    os.write(theirs.fileno(), length.to_bytes(4, "big", signed=True))
    with pytest.raises(ValueError, match="at most 1048576 are allowed"):
        receive(ours, 2**20, wait_for(ours))


def test_a_long_message_to_a_process_that_reads_none_of_it_is_given_up(ends):
    ours, _ = ends
    with pytest.raises(GaveUpError):
        send(ours, b"x" * 2**24, wait_for(ours))
    while is_ready(ours, select.POLLOUT, 0.0):
        send(ours, b"x", wait_for(ours))
    with pytest.raises(GaveUpError):
        send_descriptor(ours, 0, wait_for(ours))
