"""Takes a ``GenerateRequest`` apart; what is set and cannot be done is refused."""

from dataclasses import dataclass
from typing import Any, Final

from hybrid.prompt import Prompt
from hybrid.scheduler import (
    InvalidRequest,
    RequestTooLong,
    SamplingParams,
    UnsupportedFeature,
)
from hybrid.scheduler.field_checks import as_int

from .served_model import ServedModel
from .vllm_sampling import sampling_params_of

REFUSED_FIELDS: Final = (
    "mm_inputs",
    "extra_mm_inputs",
    "media_refs",
    "kv_transfer_params",
    "kv_transfer_params_json",
)
"""Media, and the hand-over of KV blocks between servers."""
WHAT_FITS: Final = -1
"""As ``truncate_prompt_tokens``: whatever leaves room for the answer."""
CHARACTERS_PER_TOKEN: Final = 4
"""A usual ratio; counts a text against the server's limits before it is tokenized."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request in the engine's words."""

    prompt: Prompt
    params: SamplingParams
    num_prompt_tokens: int
    """An estimate where the prompt is text."""


def parse_request(request: Any, model: ServedModel) -> ParsedRequest:
    """Read a ``vllm.grpc.engine.GenerateRequest``.

    Raises:
        InvalidRequest: a value is outside its range; names the field.
        UnsupportedFeature: it asks for what this server does not do.
    """
    _check_unsupported(request)
    sampling = request.sampling_params
    params = sampling_params_of(sampling, vocab_size=model.vocab_size)
    is_truncated = sampling.HasField("truncate_prompt_tokens")
    match request.WhichOneof("input"):
        case "tokenized":
            token_ids = request.tokenized.input_ids
            start = 0
            if is_truncated:
                limit = sampling.truncate_prompt_tokens
                start = _cut(len(token_ids), limit, params, model.max_model_len)
            # Before anything walks them: this is the loop that serves everybody.
            _check_fits(len(token_ids) - start, model.max_model_len)
            return ParsedRequest(token_ids[start:], params, len(token_ids) - start)
        case "text":
            if is_truncated:
                raise UnsupportedFeature(
                    "truncate_prompt_tokens counts token ids: with it, the prompt "
                    "must come as tokenized.input_ids, not as text"
                )
            text = request.text
            num_tokens = len(text) // CHARACTERS_PER_TOKEN + 1
            return ParsedRequest(text, params, num_tokens)
    raise InvalidRequest("input is missing: set tokenized or text", field="input")


def _check_unsupported(request: Any) -> None:
    is_set = {field.name for field, _ in request.ListFields()}
    refused = [name for name in REFUSED_FIELDS if name in is_set]
    if request.data_parallel_rank:
        refused.append(f"data_parallel_rank={request.data_parallel_rank}")
    if refused:
        raise UnsupportedFeature(f"this server does not take {', '.join(refused)}")


def _cut(
    num_tokens: int, limit: int, params: SamplingParams, max_model_len: int
) -> int:
    """Where the prompt's end begins that was asked for."""
    if limit == WHAT_FITS:
        # At least one: the engine ends an answer where the context ends.
        limit = max(max_model_len - (params.max_tokens or 1), 1)
    return max(num_tokens - as_int("truncate_prompt_tokens", limit, 1), 0)


def _check_fits(num_tokens: int, max_model_len: int) -> None:
    limit = max_model_len - 1
    if num_tokens > limit:
        raise RequestTooLong(
            f"tokenized.input_ids has {num_tokens} tokens, at most {limit} leave room "
            f"for an answer (max_model_len={max_model_len})",
            field="tokenized.input_ids",
            num_tokens=num_tokens,
            limit=limit,
        )
