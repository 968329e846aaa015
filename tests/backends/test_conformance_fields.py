"""Each property of a sampling field fails where just that field is not honoured."""

from contextlib import closing

import pytest

from hybrid.backends.interface import ExecutorConfig
from hybrid.testing import load_executor, recomputed_answers
from hybrid.testing.bench import Bench
from hybrid.testing.sampling_fields import PROPERTIES
from tests.backends.sampling_executors import FIELDS, Deaf, SelfSampling

ELSEWHERE = {"n", "stop_token_ids"}
"""The plan asks for samples, and the scheduler stops: no executor can be deaf to it."""


def check(executor: SelfSampling, field: str) -> None:
    """Hold an executor to one field."""
    with closing(executor):
        config = ExecutorConfig(block_size=4)
        loaded = load_executor(executor, None, config, num_blocks=200)
        bench = Bench(loaded, recomputed_answers, label="here", tolerance=0)
        PROPERTIES[field](bench)


def test_every_property_is_tried_here() -> None:
    """The executor that honours all is held to each in the whole kit."""
    assert set(FIELDS) == set(PROPERTIES)


@pytest.mark.parametrize("field", sorted(set(FIELDS) - ELSEWHERE))
def test_a_field_that_is_not_honoured_shows(field: str) -> None:
    """By the property of that field, with the place in the message."""

    class DeafToIt(Deaf):
        """To the field under test."""

    DeafToIt.field = field
    with pytest.raises(AssertionError, match="here"):
        check(DeafToIt(), field)
