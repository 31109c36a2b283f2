"""The core's own kernels conform, as every plugin's must."""

import pytest

from longca.testing import conformance

test_conformance = pytest.mark.sampled(4)(conformance("longca-core"))
