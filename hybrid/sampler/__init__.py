"""Turns logits into tokens: one meaning for all executors. numpy only."""

from .logits_processor import LogitsProcessor
from .sampled_step import SampledStep, TokenLogprobs
from .sampler import Sampler
from .validation import check_params

__all__ = [
    "LogitsProcessor",
    "SampledStep",
    "Sampler",
    "TokenLogprobs",
    "check_params",
]
