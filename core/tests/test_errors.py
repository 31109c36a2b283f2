"""Errors can be made anew from what they hold: by pickle, by copy, and by frameworks that know the message alone."""

import copy
import importlib
import pickle
import pkgutil

import pytest

import longca
from longca import errors

ERRORS = [
    errors.LongCAError("a request"),
    errors.MaskError("a mask"),
    errors.UnknownNameError("kernel", "naiv", ["naive", "sdpa"]),
    errors.MissingPackageError("copier", "new-plugin"),
    errors.MissingPackageError("pyarrow", "writing Parquet", "pip install 'longca-core[parquet]'"),
]


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_an_error_keeps_its_message_and_attributes(error):
    for made in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(made), str(made), vars(made)) == (type(error), str(error), vars(error))


def test_every_error_of_longca_takes_a_message_alone():
    apart = ("__main__", "integrations", "_triton")  # a program, an alias, and modules of packages that may be missing
    for module in pkgutil.walk_packages(longca.__path__, "longca.", onerror=lambda _name: None):
        if not any(part in module.name for part in apart):
            importlib.import_module(module.name)
    found = list(_children(errors.LongCAError))
    assert len(found) > 8
    for error in found:
        assert str(error("a message")) == "a message"


def _children(error):
    for child in error.__subclasses__():
        if child.__module__.startswith("longca."):
            yield child
        yield from _children(child)
