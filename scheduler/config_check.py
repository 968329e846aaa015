"""Refuses a scheduler configuration under which some request could never run."""

from typing import Final

from .config import SchedulerConfig, SchedulingPolicy
from .errors import ConfigError

_LEAST: Final = {
    "block_size": 1,
    "num_blocks": 1,
    "max_model_len": 2,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_prefill_chunk_tokens": 1,
    "max_prompt_logprobs_tokens": 1,
}
"""A context of 2 is the shortest that holds a prompt and an answer."""


def check_config(config: SchedulerConfig) -> None:
    """Check each value, then their combinations.

    Raises:
        ConfigError: names field, value and limit.
    """
    for name, least in _LEAST.items():
        value = getattr(config, name)
        if value is None and name == "max_prefill_chunk_tokens":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}, must be an integer >= {least}")
    if config.policy not in set(SchedulingPolicy):
        known = ", ".join(SchedulingPolicy)
        raise ConfigError(f"policy is {config.policy!r}, must be one of {known}")
    if not config.enable_chunked_prefill:
        _check_whole_prompts(config)
    elif config.align_chunks:
        _check_whole_blocks(config)


def _check_whole_blocks(config: SchedulerConfig) -> None:
    # The best-ranked sequence must advance in a step that it has to itself.
    for name in (
        "max_num_batched_tokens",
        "max_prefill_chunk_tokens",
        "max_prompt_logprobs_tokens",
    ):
        value = getattr(config, name)
        if value is not None and value < config.block_size:
            raise ConfigError(
                f"{name} is {value}, must be at least block_size={config.block_size} "
                "where prompts are cut at block boundaries only, as the executor asks"
            )


def _check_whole_prompts(config: SchedulerConfig) -> None:
    # A preempted sequence is computed again in one step, answer included, so that the
    # limit is the context and not the longest prompt.
    for name in ("max_num_batched_tokens", "max_prefill_chunk_tokens"):
        value = getattr(config, name)
        if value is not None and value < config.max_model_len:
            raise ConfigError(
                f"{name} is {value}, must be at least "
                f"max_model_len={config.max_model_len} while enable_chunked_prefill "
                "is False: a prompt must fit into one step"
            )
