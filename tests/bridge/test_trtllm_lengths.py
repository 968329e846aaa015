"""A step's lengths are the plan's, in buffers that never move."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.bridge.trtllm_lengths import StepLengths
from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)


def entry(num_computed: int, num_new: int, num_prompt: int) -> ScheduledRequest:
    """A sequence: what is computed, what is new, how long its prompt is."""
    request = GenerateRequest("r", (1,) * num_prompt, SamplingParams())
    return ScheduledRequest(request, 0, (1,) * num_new, num_computed, (1,), 1, 1)


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    """Contexts first, then generations of one token each."""
    size = st.integers(0, 50)
    contexts = [
        entry(draw(size), 1 + draw(size), 200) for _ in range(draw(st.integers(0, 3)))
    ]
    generations = []
    for _ in range(draw(st.integers(0, 4))):
        num_prompt = 1 + draw(size)
        generations.append(entry(num_prompt + draw(size), 1, num_prompt))
    return StepPlan(0, (*contexts, *generations), len(contexts), (), (), ())


@given(st.lists(plans(), min_size=1, max_size=4))
def test_lengths_are_the_plans_whatever_came_before(steps: list[StepPlan]) -> None:
    """Entry by entry; the operator's inclusive length counts this step's tokens."""
    lengths = StepLengths(7)
    for plan in steps:
        lengths.update(plan)
        for index, one in enumerate(plan.scheduled):
            is_context = index < plan.num_contexts
            num_new = len(one.token_ids)
            total = one.num_computed_tokens + num_new
            num_prompt = len(one.request.prompt_token_ids)
            assert lengths.sequence_length[index] == total
            assert lengths.query_lens[index] == num_new
            assert lengths.request_types[index] == (0 if is_context else 1)
            wanted = num_new if is_context else num_prompt
            assert lengths.context_lengths[index] == wanted
        contexts = lengths.sequence_length[: plan.num_contexts].sum()
        everything = lengths.sequence_length.sum()
        assert lengths.host_total_kv_lens.tolist() == [contexts, everything - contexts]
        assert lengths.sequence_length.dtype == np.int32


def test_buffers_stay_where_they_are() -> None:
    """What a captured graph or a pinned copy points at is still there."""
    lengths = StepLengths(4)
    lengths.update(StepPlan(0, (entry(0, 3, 3),), 1, (), (), ()))
    places = lengths.sequence_length.ctypes.data, lengths.request_types.ctypes.data
    lengths.update(StepPlan(1, (entry(3, 1, 3), entry(8, 1, 2)), 0, (), (), ()))
    now = lengths.sequence_length.ctypes.data, lengths.request_types.ctypes.data
    assert now == places


def test_a_step_that_the_operator_cannot_take_is_refused() -> None:
    """Too many sequences, or generations of unequal width."""
    lengths = StepLengths(2)
    with pytest.raises(ConfigError, match="3 sequences, must be at most 2"):
        lengths.update(StepPlan(0, (entry(0, 1, 1),) * 3, 3, (), (), ()))
    unequal = (entry(5, 1, 3), entry(5, 2, 3))
    with pytest.raises(ConfigError, match=r"generations of \[1, 2\] query tokens"):
        lengths.update(StepPlan(0, unequal, 0, (), (), ()))
