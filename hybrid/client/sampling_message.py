"""The engine's sampling parameters as the protocol's.

proto3 has no presence for plain numbers, and servers read a 0 as "not given" where 0
makes no sense; so a value that is meant must not become one on its way. Numbers with a
fraction travel as 32-bit floats. Source: smg-grpc-servicer 0.14.1
(``vllm/servicer.py``).
"""

from typing import Any, Final

from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid.scheduler import (
    GrammarKind,
    InvalidRequest,
    SamplingParams,
    StructuredOutput,
    UnsupportedFeature,
)
from hybrid.scheduler.shown_value import shown

MAX_SEED: Final = 2**31 - 1
MAX_COUNT: Final = 2**32 - 1
MAX_BIASED_ID: Final = 2**31 - 1
SMALLEST: Final = 2.0**-126
"""Of the normal 32-bit floats."""
_LOWEST_DRAWN: Final = 1.00001e-5
"""A temperature of 1e-5 is drawn by; rounded to 32 bits it would be greedy."""
_UNSENDABLE: Final = ("bad_words", "allowed_token_ids")


def sampling_message(params: SamplingParams) -> Any:
    """Make a ``vllm.grpc.engine.SamplingParams``.

    ``detokenize`` is about this side alone.

    Raises:
        UnsupportedFeature: a field is set that the protocol lacks.
        InvalidRequest: a value is outside the protocol's range.
    """
    for name in _UNSENDABLE:
        if getattr(params, name):
            raise UnsupportedFeature(
                f"{name} cannot be sent: the protocol has no field for it"
            )
    _check_range(params)
    message = pb.SamplingParams(
        n=params.n,
        temperature=0.0 if params.is_greedy else max(params.temperature, _LOWEST_DRAWN),
        top_p=max(params.top_p, SMALLEST),
        # Above any vocabulary: whatever is beyond keeps all ids, too.
        top_k=min(params.top_k, MAX_COUNT),
        min_p=params.min_p,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        repetition_penalty=max(params.repetition_penalty, SMALLEST),
        logit_bias=dict(params.logit_bias),
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=True,
        include_stop_str_in_output=params.include_stop_str_in_output,
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        seed=params.seed,
    )
    if params.structured_output is not None:
        _set_constraint(message, params.structured_output)
    return message


def _check_range(params: SamplingParams) -> None:
    values = [
        ("seed", params.seed, MAX_SEED),
        ("max_tokens", params.max_tokens, MAX_COUNT),
        ("min_tokens", params.min_tokens, MAX_COUNT),
        ("stop_token_ids", max(params.stop_token_ids, default=None), MAX_COUNT),
        ("logit_bias", max(params.logit_bias, default=None), MAX_BIASED_ID),
    ]
    for name, value, limit in values:
        if value is not None and value > limit:
            raise InvalidRequest(
                f"{name} is {shown(value)}, the protocol takes at most {limit}",
                field=name,
                value=value,
            )


def _set_constraint(message: Any, output: StructuredOutput) -> None:
    """Every kind is a field of its own, of the same name."""
    match output.kind:
        case GrammarKind.CHOICE:
            message.choice.choices.extend(output.choices)
        case GrammarKind.JSON_OBJECT:
            message.json_object = True
        case kind:
            setattr(message, kind.value, output.text)
