"""A stand for sampler tests: requests, one-row plans, and a driver of the loop."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybrid.backends.interface import ForwardResult
from hybrid.sampler.sampled_step import SampledStep
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.plan import ScheduledRequest, SequenceKey, StepPlan
from hybrid.scheduler.sampling_params import SamplingParams


def make_request(
    request_id: str = "a",
    prompt: Sequence[int] = (1, 2, 3),
    eos: Iterable[int] = (),
    **params: object,
) -> GenerateRequest:
    """A request with the given sampling parameters."""
    return GenerateRequest(
        request_id,
        tuple(prompt),
        SamplingParams(**params),  # type: ignore[arg-type]
        eos_token_ids=frozenset(eos),
    )


def make_entry(
    request: GenerateRequest,
    *,
    sample_index: int = 0,
    num_samples: int = 1,
    num_logits_rows: int = 1,
    token_ids: Sequence[int] | None = None,
    num_computed_tokens: int = 0,
) -> ScheduledRequest:
    """The share of one sequence; by default its whole prompt and one draw."""
    return ScheduledRequest(
        request=request,
        sample_index=sample_index,
        token_ids=tuple(request.prompt_token_ids if token_ids is None else token_ids),
        num_computed_tokens=num_computed_tokens,
        block_ids=(1,),
        num_logits_rows=num_logits_rows,
        num_samples=num_samples,
    )


def make_plan(
    *entries: ScheduledRequest, finished: Sequence[SequenceKey] = ()
) -> StepPlan:
    """A plan of these entries."""
    return StepPlan(
        step=0,
        scheduled=entries,
        num_contexts=len(entries),
        block_copies=(),
        finished=tuple(finished),
        preempted=(),
    )


def make_result(rows: ArrayLike) -> ForwardResult:
    """A forward result with these logits, read-only as an executor's would be."""
    logits = np.array(rows, dtype=np.float32)
    logits.flags.writeable = False
    return ForwardResult(logits=logits)


def step(
    sampler: Sampler, pairs: Sequence[tuple[GenerateRequest, ArrayLike]]
) -> SampledStep:
    """One step with one row and one draw per request, in the given order."""
    plan = make_plan(*(make_entry(request) for request, _ in pairs))
    return sampler.sample(plan, make_result([row for _, row in pairs]))


def draw_one(row: ArrayLike, **params: object) -> int:
    """The first token that a fresh sampler draws from one row."""
    request = make_request(**params)  # type: ignore[arg-type]
    sampler = Sampler(len(np.asarray(row)))
    sampler.add_request(request)
    return step(sampler, [(request, row)]).token_ids[0][0]


def random_rows(
    num_rows: int, vocab_size: int, *, seed: int = 0, scale: float = 3.0
) -> NDArray[np.float32]:
    """Normal logits, float32 ``[num_rows, vocab_size]``."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((num_rows, vocab_size)) * scale).astype(np.float32)
