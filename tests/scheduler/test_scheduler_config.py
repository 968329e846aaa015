"""Configurations under which something could never run are refused at once."""

from typing import Any

import pytest

from hybrid.scheduler import ConfigError
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request, make_scheduler


@pytest.mark.parametrize("value", [0, -1, True, 1.5, None, "4"])
@pytest.mark.parametrize(
    "name",
    [
        "block_size",
        "num_blocks",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_prefill_chunk_tokens",
        "max_prompt_logprobs_tokens",
    ],
)
def test_each_size_must_be_a_positive_integer(name: str, value: Any) -> None:
    """The message names field and value."""
    if name == "max_prefill_chunk_tokens" and value is None:
        return
    with pytest.raises(ConfigError, match=f"{name} is {value!r}, must be"):
        make_scheduler(**{name: value})


def test_an_unknown_policy_is_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(ConfigError, match=r"'lifo', must be one of fcfs, priority"):
        make_scheduler(policy="lifo")


@pytest.mark.parametrize(
    "limits",
    [
        {"max_num_batched_tokens": 23},
        {"max_num_batched_tokens": 24, "max_prefill_chunk_tokens": 23},
    ],
)
def test_whole_prompts_need_a_budget_of_the_whole_context(
    limits: dict[str, int],
) -> None:
    """Without chunked prefill a longer prompt would wait for ever."""
    with pytest.raises(ConfigError, match=r"is 23, .*max_model_len=24"):
        make_scheduler(enable_chunked_prefill=False, **limits)


def test_whole_prompts_run_when_the_budget_is_just_enough() -> None:
    """The longest prompt, and its recomputation, fit into one step each."""
    driver = Driver(
        enable_chunked_prefill=False, max_num_batched_tokens=24, num_blocks=7
    )
    for request_id in "abc":
        driver.add(make_request(request_id, 20))
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0
    for request_id, prompt in (("d", 5), ("e", 5), ("f", 23)):
        driver.add(make_request(request_id, prompt))
    driver.run()
    assert driver.scheduler.stats().num_preemptions > 0
