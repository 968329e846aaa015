"""From the protocol's sampling parameters to the engine's.

proto3 sends no presence for plain numbers: 0 stands for "not given" where 0 itself
would make no sense. Source: smg-grpc-servicer 0.14.1 (``vllm/servicer.py``).
"""

from typing import Any, Final

from hybrid.scheduler import (
    GrammarKind,
    SamplingParams,
    StructuredOutput,
)
from hybrid.scheduler.field_checks import check_count
from hybrid.scheduler.sampling_params import MAX_ENTRIES, MAX_SEED
from hybrid.scheduler.structured_output import MAX_CHOICES

ALL_IDS: Final = -1
"""As a number of log-probabilities: one for every id."""
NO_SEED: Final = -1
"""As a seed: none (vLLM 0.32, ``sampling_params.py``)."""


def sampling_params_of(message: Any, *, vocab_size: int) -> SamplingParams:
    """Read a ``vllm.grpc.engine.SamplingParams``.

    ``spaces_between_special_tokens`` is about text, which the gateway makes: stop
    strings are looked for in text as the tokenizer writes it. A constraint holds from
    the first token, ``grammar_from_first_token`` or not: no reasoning comes before.

    Args:
        message: the protocol's parameters.
        vocab_size: how many log-probabilities "all" are.

    Raises:
        InvalidRequest: a value is outside its range; names the field.
    """
    # Before anything walks them: this is the loop that serves everybody.
    for name in ("stop", "stop_token_ids", "logit_bias"):
        check_count(name, len(getattr(message, name)), MAX_ENTRIES[name])
    stop = tuple(message.stop)
    return SamplingParams(
        n=message.n or 1,
        temperature=_given(message, "temperature", 1.0),
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        repetition_penalty=message.repetition_penalty or 1.0,
        logit_bias=dict(message.logit_bias),
        max_tokens=_given(message, "max_tokens"),
        min_tokens=message.min_tokens,
        stop=stop,
        stop_token_ids=tuple(message.stop_token_ids),
        skip_special_tokens=message.skip_special_tokens,
        include_stop_str_in_output=message.include_stop_str_in_output,
        ignore_eos=message.ignore_eos,
        logprobs=_num_logprobs(_given(message, "logprobs"), vocab_size),
        prompt_logprobs=_num_logprobs(_given(message, "prompt_logprobs"), vocab_size),
        seed=_seed(_given(message, "seed")),
        # The answer goes out as ids: text is made only to look for stop strings.
        detokenize=bool(stop),
        structured_output=_structured_output(message),
    )


def _given(message: Any, field: str, absent: Any = None) -> Any:
    return getattr(message, field) if message.HasField(field) else absent


def _structured_output(message: Any) -> StructuredOutput | None:
    """The constraint; the protocol's names of its kinds are the engine's."""
    match message.WhichOneof("constraint"):
        case None:
            return None
        case "json_object":
            is_on = message.json_object
            return StructuredOutput(GrammarKind.JSON_OBJECT) if is_on else None
        case "choice":
            check_count("choice", len(message.choice.choices), MAX_CHOICES)
            choices = tuple(message.choice.choices)
            return StructuredOutput(GrammarKind.CHOICE, choices=choices)
        case kind:
            return StructuredOutput(GrammarKind(kind), getattr(message, kind))


def _num_logprobs(count: int | None, vocab_size: int) -> int | None:
    return vocab_size if count == ALL_IDS else count


def _seed(seed: int | None) -> int | None:
    """A negative seed is as good as any other: its 64 bits are."""
    return None if seed is None or seed == NO_SEED else seed & MAX_SEED
