"""Step plans made by hand, for executors that are driven without an engine."""

from collections.abc import Iterator, Sequence

from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

TokenIds = tuple[int, ...]


def forced_plans(
    prompts: Sequence[TokenIds], answers: Sequence[TokenIds], block_size: int
) -> Iterator[StepPlan]:
    """All prompts in one step, then the given tokens, one of each a step.

    Every entry wants one row of logits. Each sequence has blocks of its own.
    """
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    width = -(-longest // block_size)
    tables = [_table(index, width) for index in range(len(prompts))]
    entries = [
        _entry(index, prompt, prompt, 0, tables[index])
        for index, prompt in enumerate(prompts)
    ]
    yield StepPlan(0, tuple(entries), len(entries), (), (), ())
    for step in range(len(answers[0])):
        entries = [
            _entry(index, prompt, (answer[step],), len(prompt) + step, tables[index])
            for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]
        yield StepPlan(step + 1, tuple(entries), 0, (), (), ())


def decode_plan(
    step: int, batch: int, num_cached: int, width: int, block_size: int
) -> StepPlan:
    """One token of each of many sequences, ``num_cached + step`` tokens being cached.

    Args:
        step: from 0.
        batch: sequences.
        num_cached: tokens of each one's prompt.
        width: blocks that each one will have in the end.
        block_size: tokens of a block.
    """
    num_computed = num_cached + step
    num_blocks = num_computed // block_size + 1
    entries = tuple(
        _entry(
            index,
            (5,) * num_cached,
            ((7 * index + step) % 300,),
            num_computed,
            _table(index, width)[:num_blocks],
        )
        for index in range(batch)
    )
    return StepPlan(step, entries, 0, (), (), ())


def _table(index: int, width: int) -> tuple[int, ...]:
    # Block 0 is the null block.
    return tuple(range(1 + index * width, 1 + (index + 1) * width))


def _entry(
    index: int,
    prompt: TokenIds,
    token_ids: TokenIds,
    num_computed_tokens: int,
    table: tuple[int, ...],
) -> ScheduledRequest:
    request = GenerateRequest(f"{index}", prompt, SamplingParams())
    return ScheduledRequest(request, 0, token_ids, num_computed_tokens, table, 1, 1)
