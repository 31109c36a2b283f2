"""How many rounds ranks take before they tell each other their times: by the rules of one device, and no more."""

import pytest

from longca_bench.measuring.timing import LEAST, SAMPLES
from longca_bench.ranks.rounds import _next_rounds


@pytest.mark.parametrize(
    ("taken", "before", "count"),
    [
        ([], 0.2, 5),  # as many as fit
        ([], 0.001, 8),  # and no more at once
        ([], 5.0, LEAST),  # but some, however long they take
        ([5.0], 5.0, LEAST - 1),
        ([5.0] * LEAST, 5.0, 0),
        ([0.3, 0.3, 0.3], 9.0, 1),  # by what they took, not by the warm-up
        ([0.001] * (SAMPLES - 2), 0.001, 2),
        ([0.001] * SAMPLES, 0.001, 0),
    ],
)
def test_rounds_to_come(taken, before, count):
    assert _next_rounds(taken, before, 1.0) == count
