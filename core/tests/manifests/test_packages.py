import re

import pytest

from longca.manifests.packages import installed_version, missing


def test_packages_are_looked_up_by_distribution_name():
    assert installed_version("longca-core")
    assert installed_version("LongCA_Core") == installed_version("longca-core")
    # An importable name proves nothing.
    assert installed_version("longca") is None


@pytest.mark.parametrize(
    ("requirement", "answer"),
    [
        ("numpy>=1", None),
        ("numpy", None),
        ("numpy<1", "numpy .* is installed"),
        ("no-such-thing>=2", "no-such-thing is not installed"),
        ("no-such-thing; python_version < '3'", None),
        ("no-such-thing>=2 | numpy>=1", None),
        ("no-such-thing>=2|nor-this", "no-such-thing is not installed, and nor-this is not installed"),
    ],
)
def test_what_is_wrong_with_a_requirement(requirement, answer):
    found = missing(requirement)
    assert found is None if answer is None else re.fullmatch(answer, found)
