"""Tests of several processes get a world, which outlives a test. Tests of one size run one after another."""

import pytest

from .worlds import World


class Worlds:
    """A world of some size. There is one world at a time, so that few processes wait."""

    def __init__(self):
        self._world = None

    def of(self, size):
        """A living world."""
        if self._world is None or self._world.size != size or self._world.ended:
            self.end()
            self._world = World(size)
        return self._world

    def end(self):
        """Ends the world there is."""
        if self._world is not None and not self._world.ended:
            self._world.end()
        self._world = None


@pytest.fixture(scope="session")
def worlds():
    made = Worlds()
    yield made
    made.end()


@pytest.fixture
def world(request, worlds):
    """A world of as many ranks as the parameter says."""
    return worlds.of(request.param)


def pytest_collection_modifyitems(items):
    places = [at for at, item in enumerate(items) if "world" in getattr(item, "fixturenames", ())]
    ordered = sorted((items[at] for at in places), key=lambda item: item.callspec.params["world"])
    for at, item in zip(places, ordered, strict=True):
        items[at] = item
