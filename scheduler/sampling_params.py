"""How one request is sampled, stopped and reported: values, checked once, frozen.

Names follow vLLM 0.32 (``vllm/sampling_params.py``). Knows no vocabulary: ids are
checked against the model's by whoever knows it, before the request enters the engine.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from .errors import InvalidRequest

MAX_SAMPLES: Final = 1024
MAX_LOGPROBS: Final = 1_000_000
"""Above any vocabulary; the engine's own ``max_logprobs`` is the limit users meet."""
MAX_STOP_STRINGS: Final = 64
MAX_SEED: Final = 2**64 - 1
_NO_BIAS: Final[Mapping[int, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The meaning below holds for every executor; what one cannot do, it refuses.

    Order: ``allowed_token_ids``, ``bad_words``, ``min_tokens``, ``logit_bias`` and
    custom logits processors; the three penalties; ``temperature``; ``min_p``;
    ``top_k``; ``top_p``; one draw. Greedy takes the highest logit after the penalties.

    Raises:
        InvalidRequest: a value is outside its range; the message names the field.
    """

    n: int = 1
    """Samples of this prompt, 1 to 1024. They share the prompt's blocks."""
    temperature: float = 1.0
    """Logits are divided by it; 0 is greedy, ties to the lowest id. From 0 to 2 is
    usual. Values so small that the division loses the softmax give the greedy
    answer."""
    top_p: float = 1.0
    """In (0, 1]: keep the smallest set of likeliest ids whose probability reaches
    it."""
    top_k: int = 0
    """Keep the k most likely ids, ties to the lowest id; 0 (or -1) keeps all."""
    min_p: float = 0.0
    """In [0, 1]: drop ids less likely than this share of the most likely one."""
    presence_penalty: float = 0.0
    """In [-2, 2]: subtracted once from the logit of every id in the *output* so far."""
    frequency_penalty: float = 0.0
    """In [-2, 2]: subtracted per occurrence in the *output* so far."""
    repetition_penalty: float = 1.0
    """Above 0: the logit of every id in *prompt or output* is divided by it when
    positive, multiplied when negative."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    """Token id to a bias in [-100, 100], added to its logit."""
    allowed_token_ids: tuple[int, ...] | None = None
    """If given, no other id can be drawn; not empty."""
    bad_words: tuple[str, ...] = ()
    """Texts whose tokens may not be completed, with and without a space before."""
    min_tokens: int = 0
    """End-of-sequence and ``stop_token_ids`` cannot be drawn, and stop strings are not
    looked for, until this many tokens are out."""
    max_tokens: int | None = None
    """Most tokens to generate, at least 1; ``None`` goes on to the context's limit."""
    seed: int | None = None
    """0 to 2**64-1. A draw depends on (seed, output position, sample index) alone, not
    on neighbours, batch order or preemption. ``None``: the engine draws a seed."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; cut from it. Adds to the model's own ends."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the answer; part of ``token_ids``. Adds to the model's own ends."""
    include_stop_str_in_output: bool = False
    """Whether ``text`` ends with the stop string (or stop token's text) it met."""
    ignore_eos: bool = False
    """Go on past the model's own end-of-sequence ids."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of ``text``."""
    logprobs: int | None = None
    """Log-probabilities of the k most likely ids per output token, and of the one drawn
    (k + 1 entries when it is not among them). They are those of the raw logits, before
    everything above."""
    prompt_logprobs: int | None = None
    """The same for every prompt token but the first, whose entry is ``None``."""
    detokenize: bool = True
    """Whether text is made. Without it, stop strings and bad words are refused."""

    def __post_init__(self) -> None:
        """Bring sequences into one shape, then check every field."""
        set_field = object.__setattr__
        for name in ("stop", "bad_words"):
            set_field(self, name, _as_texts(name, getattr(self, name)))
        set_field(
            self, "stop_token_ids", _as_ids("stop_token_ids", self.stop_token_ids)
        )
        if self.allowed_token_ids is not None:
            ids = _as_ids("allowed_token_ids", self.allowed_token_ids)
            set_field(self, "allowed_token_ids", ids)
        if self.top_k == -1:
            set_field(self, "top_k", 0)
        set_field(self, "logit_bias", _as_bias(self.logit_bias))
        self._check_numbers()
        self._check_combinations()

    @property
    def is_greedy(self) -> bool:
        """Whether the answer involves no draw."""
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        _check_int("n", self.n, 1, MAX_SAMPLES)
        _check_float("temperature", self.temperature, 0.0, math.inf)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_int("top_k", self.top_k, 0, None)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float(
            "repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True
        )
        _check_int("min_tokens", self.min_tokens, 0, None)
        for name, low, high in (
            ("max_tokens", 1, None),
            ("seed", 0, MAX_SEED),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, low, high)

    def _check_combinations(self) -> None:
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest(
                "allowed_token_ids is empty: no token could be drawn",
                field="allowed_token_ids",
                value=self.allowed_token_ids,
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, more than "
                f"max_tokens={self.max_tokens}",
                field="min_tokens",
                value=self.min_tokens,
            )
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop has {len(self.stop)} entries, at most {MAX_STOP_STRINGS}",
                field="stop",
                value=len(self.stop),
            )
        for name in ("stop", "bad_words"):
            if getattr(self, name) and not self.detokenize:
                raise InvalidRequest(
                    f"{name} needs text, but detokenize is False",
                    field=name,
                    value=getattr(self, name),
                )


def _fault(name: str, value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is {value!r}, must be {wanted}", field=name, value=value
    )


def _check_int(name: str, value: object, low: int, high: int | None) -> None:
    wanted = f"an integer, {low} or more" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise _fault(name, value, wanted)
    if value < low or (high is not None and value > high):
        raise _fault(name, value, wanted)


def _check_float(
    name: str, value: object, low: float, high: float, *, open_low: bool = False
) -> None:
    bracket = "(" if open_low else "["
    wanted = (
        f"a finite number in {bracket}{low:g}, {high:g}]"
        if math.isfinite(high)
        else f"a finite number {'above' if open_low else 'of at least'} {low:g}"
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fault(name, value, wanted)
    if not math.isfinite(value) or not low <= value <= high:
        raise _fault(name, value, wanted)
    if open_low and value == low:
        raise _fault(name, value, wanted)


def _as_texts(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(t, str) for t in texts):
        raise _fault(name, value, "a text or a sequence of texts")
    if not all(texts):
        raise _fault(name, value, "free of empty texts")
    return tuple(texts)


def _as_ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise _fault(name, value, "a sequence of token ids")
    ids = tuple(value)
    for token_id in ids:
        _check_int(name, token_id, 0, None)
    return ids


def _as_bias(value: Any) -> Mapping[int, float]:
    if value is None or not value:
        return _NO_BIAS
    if not isinstance(value, Mapping):
        raise _fault("logit_bias", value, "a mapping of token ids to numbers")
    bias: dict[int, float] = {}
    for key, amount in value.items():
        # OpenAI's JSON has the ids as text.
        token_id = int(key) if isinstance(key, str) and key.isdecimal() else key
        _check_int("logit_bias", token_id, 0, None)
        _check_float(f"logit_bias[{token_id}]", amount, -100.0, 100.0)
        bias[token_id] = float(amount)
    return MappingProxyType(bias)
