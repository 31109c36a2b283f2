"""The core's own kernels conform, as every plugin's must."""

import pytest

from longca.testing import conformance

test_conformance = pytest.mark.sampled(6)(conformance("longca-core"))
