"""What tests of integrations share: LongCA among the attention implementations of transformers."""

import pytest


@pytest.fixture
def registered():
    from longca.integrations.transformers import register  # tests of other integrations import no transformers

    register()
