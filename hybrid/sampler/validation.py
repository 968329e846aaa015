"""Checks a request's ids and counts against the model, before it enters the engine."""

from collections.abc import Iterable, Sequence

from hybrid.scheduler.errors import InvalidRequest
from hybrid.scheduler.field_checks import as_int
from hybrid.scheduler.sampling_params import SamplingParams


def check_params(
    params: SamplingParams,
    prompt_token_ids: Sequence[int],
    *,
    vocab_size: int,
    max_logprobs: int,
) -> None:
    """Refuse what the model's vocabulary or the engine's limits rule out.

    Args:
        params: the request's; their own ranges were checked when they were made.
        prompt_token_ids: the prompt.
        vocab_size: ids below it exist.
        max_logprobs: most log-probabilities per position that the engine gives.

    Raises:
        InvalidRequest: naming the field and the id or count at fault.
    """
    _check_ids("prompt_token_ids", prompt_token_ids, vocab_size)
    _check_ids("logit_bias", params.logit_bias, vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    for name, count in (
        ("logprobs", params.logprobs),
        ("prompt_logprobs", params.prompt_logprobs),
    ):
        if count is not None and count > max_logprobs:
            raise InvalidRequest(
                f"{name} is {count}, this engine gives at most "
                f"max_logprobs={max_logprobs}",
                field=name,
                value=count,
            )


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token_id in ids:
        # Prompts are long: the usual integer is looked at here, the rest by name.
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            as_int(name, token_id, 0, vocab_size - 1, item=" entry")
