import pytest

from longca.testing import conformance

test_conformance = pytest.mark.sampled(4)(conformance("longca-example"))
