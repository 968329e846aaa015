"""How one request is sampled, stopped and reported: values, checked once, frozen.

Names follow vLLM 0.32 (``vllm/sampling_params.py``). Knows no vocabulary: ids are
checked against the model's by whoever knows it, before the request enters the engine.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from .errors import InvalidRequest
from .field_checks import (
    as_bias,
    as_bool,
    as_float,
    as_ids,
    as_int,
    as_positive_float,
    as_texts,
    fault,
)
from .structured_output import StructuredOutput

MAX_SAMPLES: Final = 1024
MAX_LOGPROBS: Final = 1_000_000
"""Above any vocabulary; the engine's own ``max_logprobs`` is the limit users meet."""
MAX_ENTRIES: Final = {
    "stop": 64,
    "bad_words": 1024,
    "stop_token_ids": 1024,
    "logit_bias": 4096,
    "allowed_token_ids": 1_000_000,
}
"""Of the fields that hold many values, each of which is looked at while others wait. An
allow-list may name a whole vocabulary, whatever the model's."""
MAX_TEXT_CHARACTERS: Final = 4096
"""Of one entry: a text is looked for, or spelled, while others wait."""
MAX_SEED: Final = 2**64 - 1
MAX_BIAS: Final = 100.0
GREEDY_BELOW: Final = 1e-5
"""Temperatures below it are greedy. Divided by less, float32 logits of usual size
differ by more than the softmax can tell apart, or not at all."""
_NO_BIAS: Final[Mapping[int, float]] = MappingProxyType({})
_OPTIONAL_INTS: Final = (
    ("max_tokens", 1, None),
    ("seed", 0, MAX_SEED),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)
_TEXTS: Final = ("stop", "bad_words")
_FLAGS: Final = (
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "detokenize",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The meaning below holds for every executor; what one cannot do, it refuses.

    Order: ``structured_output``, ``allowed_token_ids``, ``bad_words``, ``min_tokens``,
    ``logit_bias`` and custom logits processors; the three penalties; ``temperature``;
    ``min_p``; ``top_k``; ``top_p``; one draw. Greedy takes the highest logit after the
    penalties.
    ``bad_words`` and ``min_tokens`` give way where they would leave nothing to draw.

    Raises:
        InvalidRequest: a value is outside its range; the message names the field.
    """

    n: int = 1
    """Samples of this prompt, 1 to 1024. They share the prompt's blocks."""
    temperature: float = 1.0
    """Logits are divided by it; 0 is greedy, ties to the lowest id, and so is whatever
    is below 1e-5, where the division would lose the softmax. From 0 to 2 is usual."""
    top_p: float = 1.0
    """In (0, 1]: keep the smallest set of likeliest ids whose probability reaches this
    share of what ``min_p`` and ``top_k`` leave; ties to the lowest id."""
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
    """Token id to a bias in [-100, 100], added to its logit; up to 4096 ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """If given, no other id can be drawn; not empty."""
    bad_words: tuple[str, ...] = ()
    """Texts whose tokens may not be completed, with and without a space before; one may
    have begun in the prompt."""
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
    """Up to 1024 ids that end the answer; part of ``token_ids``. Adds to the model's
    own ends."""
    include_stop_str_in_output: bool = False
    """Whether ``text`` ends with the stop string (or stop token's text) it met."""
    ignore_eos: bool = False
    """Go on past the model's own end-of-sequence ids."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of ``text``."""
    logprobs: int | None = None
    """Log-probabilities of the k most likely ids per output token, and of the one drawn
    (k + 1 entries when it is not among them): the log-softmax of the raw logits, before
    everything above, over the ids that the tokenizer knows."""
    prompt_logprobs: int | None = None
    """The same for every prompt token but the first, whose entry is ``None``."""
    detokenize: bool = True
    """Whether text is made. Without it, stop strings and bad words are refused."""
    structured_output: StructuredOutput | None = None
    """The form of the answer: every token keeps to it, the model's end comes where the
    form is complete, and ends the answer where nothing can follow. ``max_tokens``, a
    stop string or stop token may cut it short."""

    def __post_init__(self) -> None:
        """Check every field and bring it into one shape."""
        for name, value in self._checked():
            object.__setattr__(self, name, value)
        self._check_combinations()

    def __reduce__(
        self,
    ) -> tuple[Callable[[dict[str, Any]], "SamplingParams"], tuple[dict[str, Any]]]:
        """Pickle and copy by value: a read-only mapping can do neither."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return _from_values, ({**values, "logit_bias": dict(self.logit_bias)},)

    def __hash__(self) -> int:
        """Equal parameters hash alike, the bias included."""
        names = [entry.name for entry in fields(self) if entry.name != "logit_bias"]
        bias = frozenset(self.logit_bias.items())
        return hash((bias, *(getattr(self, name) for name in names)))

    @property
    def is_greedy(self) -> bool:
        """Whether the answer involves no draw."""
        return self.temperature < GREEDY_BELOW

    def _checked(self) -> Iterator[tuple[str, object]]:
        """Names and checked values of all fields."""
        yield "n", as_int("n", self.n, 1, MAX_SAMPLES)
        yield "temperature", as_float("temperature", self.temperature, 0.0)
        yield "top_p", as_positive_float("top_p", self.top_p, 1.0)
        top_k = as_int("top_k", self.top_k, -1)
        yield "top_k", max(top_k, 0)
        yield "min_p", as_float("min_p", self.min_p, 0.0, 1.0)
        for name in ("presence_penalty", "frequency_penalty"):
            yield name, as_float(name, getattr(self, name), -2.0, 2.0)
        name = "repetition_penalty"
        yield name, as_positive_float(name, self.repetition_penalty)
        name = "logit_bias"
        yield name, as_bias(name, self.logit_bias, MAX_BIAS, MAX_ENTRIES[name])
        if self.allowed_token_ids is not None:
            name = "allowed_token_ids"
            yield name, as_ids(name, self.allowed_token_ids, MAX_ENTRIES[name])
        name = "stop_token_ids"
        yield name, as_ids(name, self.stop_token_ids, MAX_ENTRIES[name])
        for name in _TEXTS:
            texts = getattr(self, name)
            yield name, as_texts(name, texts, MAX_ENTRIES[name], MAX_TEXT_CHARACTERS)
        yield "min_tokens", as_int("min_tokens", self.min_tokens, 0)
        for name, low, high in _OPTIONAL_INTS:
            if getattr(self, name) is not None:
                yield name, as_int(name, getattr(self, name), low, high)
        for name in _FLAGS:
            yield name, as_bool(name, getattr(self, name))
        output = self.structured_output
        if output is not None and not isinstance(output, StructuredOutput):
            raise fault("structured_output", output, "a StructuredOutput")

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
        if self.structured_output is not None and self.ignore_eos:
            raise InvalidRequest(
                "ignore_eos is True beside structured_output: the model's end is how "
                "a form ends",
                field="ignore_eos",
                value=self.ignore_eos,
            )
        for name in _TEXTS:
            if getattr(self, name) and not self.detokenize:
                raise InvalidRequest(
                    f"{name} needs text, but detokenize is False",
                    field=name,
                    value=getattr(self, name),
                )


def _from_values(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)
