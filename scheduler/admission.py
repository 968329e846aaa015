"""Refuses, before anything is queued, what can never run; sets the rest's length."""

import math
from numbers import Integral, Real
from typing import Final

from .config import SchedulerConfig
from .errors import InvalidRequest, OutOfBlocks, RequestTooLong
from .field_checks import fault
from .generate_request import GenerateRequest

MAX_TOKEN_ID: Final = 2**31 - 1
"""Executors take int32 ids."""


def check_request(config: SchedulerConfig, request: GenerateRequest) -> int:
    """Check one request against context and pool.

    Returns:
        The number of tokens, prompt included, at which each of its sequences ends with
        "length": the least of prompt + ``max_tokens``, the context, and, only if
        ``max_tokens`` is ``None``, what the whole pool can hold.

    Raises:
        InvalidRequest: empty prompt, impossible ids, more samples than places, or what
            ranks and keys the request is of a wrong type.
        RequestTooLong: the prompt leaves no room for a token in the context.
        OutOfBlocks: one sequence alone outgrows the pool.
    """
    _check_values(config, request)
    _check_rank(request.priority, request.arrival_time_s)
    _check_text("cache_salt", request.cache_salt)
    _check_text("adapter", request.adapter)
    num_prompt = len(request.prompt_token_ids)
    if num_prompt >= config.max_model_len:
        raise RequestTooLong(
            f"the prompt has {num_prompt} tokens, at most {config.max_model_len - 1} "
            f"leave room for an answer (max_model_len={config.max_model_len})",
            field="prompt_token_ids",
            num_tokens=num_prompt,
            limit=config.max_model_len - 1,
        )
    return _check_blocks(config, request)


def _check_values(config: SchedulerConfig, request: GenerateRequest) -> None:
    prompt = request.prompt_token_ids
    if not prompt:
        raise InvalidRequest(
            "the prompt is empty: there is no token to continue",
            field="prompt_token_ids",
            value=prompt,
        )
    for token_id in (min(prompt), max(prompt)):
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise InvalidRequest(
                f"prompt_token_ids holds {token_id}, must be from 0 to {MAX_TOKEN_ID}",
                field="prompt_token_ids",
                value=token_id,
            )
    num_samples = request.sampling_params.n
    if num_samples > config.max_num_seqs:
        raise InvalidRequest(
            f"n is {num_samples}, at most max_num_seqs={config.max_num_seqs} sequences "
            "run at once",
            field="n",
            value=num_samples,
        )


def _check_rank(priority: object, arrival_time_s: object) -> None:
    """What cannot be compared would be met by a queue that is half changed."""
    if isinstance(priority, bool) or not isinstance(priority, Integral):
        raise fault("priority", priority, "an integer")
    wanted = "a finite number of seconds"
    if isinstance(arrival_time_s, bool) or not isinstance(arrival_time_s, Real):
        raise fault("arrival_time_s", arrival_time_s, wanted)
    try:
        is_finite = math.isfinite(arrival_time_s)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise fault("arrival_time_s", arrival_time_s, wanted)


def _check_text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise fault(name, value, "a text or None")


def _check_blocks(config: SchedulerConfig, request: GenerateRequest) -> int:
    num_prompt = len(request.prompt_token_ids)
    max_tokens = request.sampling_params.max_tokens
    max_num_tokens = config.max_model_len
    if max_tokens is not None:
        max_num_tokens = min(max_num_tokens, num_prompt + max_tokens)
    # The last token of an answer is never run through the model: it needs no slot.
    capacity = config.num_blocks * config.block_size
    num_needed = num_prompt if max_tokens is None else max_num_tokens - 1
    if num_needed > capacity:
        num_blocks = -(-num_needed // config.block_size)
        what = (
            f"the prompt of {num_prompt} tokens"
            if num_prompt > capacity
            else f"the prompt of {num_prompt} tokens with max_tokens={max_tokens}"
        )
        raise OutOfBlocks(
            f"{what} needs {num_blocks} blocks of {config.block_size} tokens, "
            f"the pool has {config.num_blocks}",
            num_blocks=num_blocks,
            limit=config.num_blocks,
            field="prompt_token_ids" if num_prompt > capacity else "max_tokens",
        )
    return min(max_num_tokens, capacity + 1)
