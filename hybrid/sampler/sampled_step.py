"""What the sampler makes of one step: tokens and, where wanted, log-probabilities."""

from dataclasses import dataclass

from hybrid.scheduler.errors import SamplingFailed


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the softmax of the *raw* logits.

    Raw: before masks, bias, processors, penalties and temperature. The softmax is over
    the ids that the tokenizer knows: the probabilities of all of them sum to 1.
    """

    token_id: int
    """The token drawn, or standing in the prompt, at this position."""
    logprob: float
    rank: int
    """1 for the likeliest id; of equally likely ones the lower id ranks first."""
    top_token_ids: tuple[int, ...]
    """The k likeliest ids in the order of rank; may or may not hold ``token_id``."""
    top_logprobs: tuple[float, ...]
    """Those of ``top_token_ids``."""


@dataclass(frozen=True, slots=True)
class SampledStep:
    """Aligned with ``StepPlan.scheduled``: entry i of each tuple belongs to entry i."""

    token_ids: tuple[tuple[int, ...], ...]
    """``num_samples`` tokens each: ``()`` for a prompt that is not complete yet."""
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...]
    """One per drawn token; ``None`` where the request asked for none."""
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...]
    """One per prompt token that this step's rows predict, in the prompt's order; the
    concatenation over steps covers the prompt from its second token on, once, also when
    a preemption computes it again. ``None`` where the request asked for none."""
    failed: tuple[SamplingFailed, ...] = ()
    """The requests whose draw is impossible, each once. Their entries hold id 0 for
    every token and no log-probabilities; the caller aborts them."""
