"""Executors that sample themselves: one by the engine's own sampler, and liars."""

from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import (
    Capabilities,
    ExecutorConfig,
    ForwardResult,
    ModelInfo,
    ProgressCallback,
)
from hybrid.backends.null.executor import NullExecutor
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import GenerateRequest, SamplingParams, StepPlan

FIELDS: Final = (
    "n",
    "temperature",
    "seed",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "min_tokens",
    "stop_token_ids",
)


class SelfSampling(NullExecutor):
    """Honours every field that token ids can show."""

    def __init__(self) -> None:
        super().__init__()
        self._sampler = Sampler(1)
        self._known: set[str] = set()

    def capabilities(self) -> Capabilities:
        """Declare them."""
        return replace(
            super().capabilities(),
            name="self-sampling",
            returns_logits=False,
            prompt_logprobs=False,
            sampling_fields=FIELDS,
        )

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Make a sampler for the vocabulary."""
        info = super().load(model, config, progress)
        self._sampler = Sampler(info.vocab_size)
        return info

    def heard(self, params: SamplingParams) -> SamplingParams:
        """Take a request at its word."""
        return params

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run the plan, draw from its logits."""
        for entry in plan.scheduled:
            self._add(entry.request)
        sampled = self._sampler.sample(plan, super().execute(plan))
        return ForwardResult(sampled_token_ids=sampled.token_ids)

    def _add(self, request: GenerateRequest) -> None:
        if request.request_id not in self._known:
            self._known.add(request.request_id)
            params = self.heard(request.sampling_params)
            self._sampler.add_request(replace(request, sampling_params=params))


class Deaf(SelfSampling):
    """Honours every field but one."""

    field: ClassVar[str]

    def heard(self, params: SamplingParams) -> SamplingParams:
        """Do as if it had not been given."""
        plain: Any = 0.0
        if self.field != "temperature":
            plain = getattr(SamplingParams(), self.field)
        return replace(params, **{self.field: plain})


class DeafToTemperature(Deaf):
    """Is always greedy."""

    field = "temperature"


class DeafToSeed(Deaf):
    """Draws otherwise each time."""

    field = "seed"


class DeafToTopK(Deaf):
    """Draws from all ids."""

    field = "top_k"


class Contrary(SelfSampling):
    """Rewards what it is to penalise."""

    def heard(self, params: SamplingParams) -> SamplingParams:
        """Turn the sign round."""
        return replace(params, presence_penalty=-params.presence_penalty)


class NeverStops(SelfSampling):
    """Keeps stops away for good, not for ``min_tokens``."""

    def heard(self, params: SamplingParams) -> SamplingParams:
        """Stretch it to the end."""
        if params.stop_token_ids and params.max_tokens is not None:
            return replace(params, min_tokens=params.max_tokens)
        return params


class Greedy(SelfSampling):
    """Declares all that, and takes the likeliest id whatever is asked."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Look at no parameter."""
        logits = np.from_dlpack(NullExecutor.execute(self, plan).logits)
        drawn: list[tuple[int, ...]] = []
        end = 0
        for entry in plan.scheduled:
            end += entry.num_logits_rows
            likeliest = logits[end - 1 : end].argmax(axis=1).tolist()
            drawn.append(tuple(likeliest) * entry.num_samples)
        return ForwardResult(sampled_token_ids=tuple(drawn))
