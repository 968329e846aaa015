"""Requests and schedulers with tiny defaults: block_size 4, 8 blocks."""

from collections.abc import Iterable
from typing import Any

from hybrid.scheduler import (
    GenerateRequest,
    PagedScheduler,
    SamplingParams,
    SchedulerConfig,
)

EOS = 0
"""The end-of-sequence id of every request made here."""

_REQUEST_FIELDS = ("priority", "arrival_time_s", "cache_salt", "adapter")


def make_request(
    request_id: str = "a", prompt: Iterable[int] | int = 5, **fields: Any
) -> GenerateRequest:
    """A request; ``prompt`` may be a length, other fields go where they belong."""
    if isinstance(prompt, int):
        # Distinct per request, so that nothing is shared unless a test wants it.
        start = 1000 * (1 + sum(map(ord, request_id)))
        prompt = range(start, start + prompt)
    own = {name: fields.pop(name) for name in _REQUEST_FIELDS if name in fields}
    eos_token_ids = frozenset(fields.pop("eos_token_ids", {EOS}))
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(**fields),
        eos_token_ids=eos_token_ids,
        **own,
    )


def make_config(**fields: Any) -> SchedulerConfig:
    """A configuration of 8 blocks of 4 tokens, context 24, budget 16, 4 sequences."""
    defaults: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": 8,
        "max_model_len": 24,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
    }
    return SchedulerConfig(**defaults | fields)


def make_scheduler(**fields: Any) -> PagedScheduler:
    """A scheduler of ``make_config``."""
    return PagedScheduler(make_config(**fields))
