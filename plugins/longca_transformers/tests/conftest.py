"""What the tests share: LongCA among the attention implementations of transformers."""

import pytest

from longca_transformers import register


@pytest.fixture
def registered():
    register()
