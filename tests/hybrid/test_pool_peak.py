"""The fullest that the pool has been is found, though not every step looks at it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid import SamplingParams
from hybrid.scheduler import SequenceUpdate, StepPlan
from tests.hybrid.null_stand import VOCAB_SIZE, make_engine

PROMPTS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(PROMPTS, min_size=1, max_size=4),
    n=st.sampled_from([1, 3]),
    num_blocks=st.integers(12, 40),
    block_size=st.sampled_from([1, 2, 4, 8]),
    chunk=st.sampled_from([1, 3, None]),
    caching=st.booleans(),
    copies=st.booleans(),
)
def test_the_peak_is_the_most_after_any_step(
    prompts: list[list[int]],
    n: int,
    num_blocks: int,
    block_size: int,
    chunk: int | None,
    *,
    caching: bool,
    copies: bool,
) -> None:
    """Through chunks, forks, copies on write, cached prefixes and preemption."""
    engine = make_engine(
        num_blocks=num_blocks * 4 // block_size,
        block_size=block_size,
        max_prefill_chunk_tokens=chunk,
        enable_prefix_caching=caching,
        supports_block_copy=copies,
        max_num_seqs=6,
        max_model_len=40,
    )
    scheduler = engine.scheduler
    update = scheduler.update
    fullest = [(0, 0)]

    def watched(plan: StepPlan, sampled: object) -> tuple[SequenceUpdate, ...]:
        updates = update(plan, sampled)  # type: ignore[arg-type]
        stats = scheduler.stats()
        if stats.num_allocated_slots > fullest[0][0]:
            fullest[0] = (stats.num_allocated_slots, stats.num_used_slots)
        return updates

    scheduler.update = watched  # type: ignore[method-assign]
    params = SamplingParams(temperature=1.0, n=n, max_tokens=7, seed=0)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        engine.step()
    seen = engine.stats()
    assert (seen.kv_peak_allocated_slots, seen.kv_peak_used_slots) == fullest[0]
