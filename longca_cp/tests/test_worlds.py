"""The processes of tests end for every outcome of a job."""

import os

import pytest

from .worlds import World, WorldError

#: Of a process that is gone, its end is told, or what gloo says to a rank that waited for it: whichever comes first.
GONE = r"its process ended|gloo/transport"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("job", "says"), [(("fail_on", 1), "ValueError: as it was to"), (("vanish",), GONE)])
def test_a_job_that_fails_ends_the_world_and_says_why(job, says):
    world = World(3)
    with pytest.raises(WorldError, match=says):
        world.run(*job)
    assert world.ended
    with pytest.raises(ProcessLookupError):
        os.killpg(world._process.pid, 0)  # none of its processes is left
