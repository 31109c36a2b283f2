"""Places of ranks in layouts."""

import pytest

from longca_bench.suites.tasks import places_of


@pytest.mark.parametrize(
    ("mesh", "axes", "places"),
    [
        ((("ring", 3),), (("ring", 3),), (0, 1, 2)),
        ((("ring", 2), ("ulysses", 3)), (("ring", 2), ("ulysses", 3)), (0, 1, 2, 3, 4, 5)),
        # Rank r has index r // 2 among ulysses and r % 2 on the ring: places count through the ring first.
        ((("ulysses", 3), ("ring", 2)), (("ring", 2), ("ulysses", 3)), (0, 3, 1, 4, 2, 5)),
    ],
)
def test_places_count_through_the_axes_in_the_order_of_the_strategy(mesh, axes, places):
    assert places_of(mesh, axes) == places
