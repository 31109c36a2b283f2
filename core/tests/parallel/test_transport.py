"""The transport that a caller asks for, and the strategies that list it."""

import pytest

from longca.errors import RequestError
from longca.manifests import StrategyManifest, Transport
from longca.parallel.strategy import constructed, transport_of

FIELDS = {
    "name": "round",
    "title": "Round",
    "upstream": "here",
    "license": "Apache-2.0",
    "axes": ("ring",),
    "placements": ("contiguous",),
    "layout": "round:layout",
    "implementation": "round:Round",
}
ONE = StrategyManifest(**FIELDS)
BOTH = StrategyManifest(**FIELDS, transports=("collectives", "copy_engine"))


class Round:
    def __init__(self, mesh, **options):
        self.given = mesh, options


def test_a_strategy_of_one_transport_is_made_as_ever():
    assert ONE.transports == (Transport.COLLECTIVES,)
    for asked in ("auto", "collectives", Transport.COLLECTIVES):
        transport = transport_of(asked, ONE)
        assert transport is Transport.COLLECTIVES
        assert constructed(Round, ONE, "mesh", transport).given == ("mesh", {})


@pytest.mark.parametrize("asked", Transport)
def test_a_strategy_of_several_transports_is_told_which(asked):
    transport = transport_of(str(asked), BOTH)
    assert transport is asked
    assert constructed(Round, BOTH, "mesh", transport).given == ("mesh", {"transport": asked})


@pytest.mark.parametrize("asked", ["nvlink", None, 3])
def test_a_transport_that_does_not_exist_is_refused(asked):
    with pytest.raises(RequestError, match="give auto, collectives, copy_engine"):
        transport_of(asked, BOTH)


@pytest.mark.parametrize("listed", [(), ("auto",), ("collectives", "collectives"), ("nvlink",)])
def test_a_manifest_lists_each_way_once(listed):
    with pytest.raises(ValueError, match="transports"):
        StrategyManifest(**FIELDS, transports=listed)
