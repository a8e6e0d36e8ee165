"""The examples in docstrings of the public API run, and show what they say."""

import doctest

import pytest

from helpers.api_jobs import small
from holdfast import testing
from holdfast.api import planning, settings, training
from holdfast.faults import fault


@pytest.mark.parametrize(
    "module", [testing, training, planning, settings, fault], ids=lambda module: module.__name__
)
def test_the_examples_of_a_module_run(module):
    failed, tried = doctest.testmod(module, extraglobs={"EXAMPLE": small})
    assert tried
    assert failed == 0
