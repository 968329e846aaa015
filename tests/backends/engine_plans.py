"""Plans of a few steps for compiled engines, made by hand."""

from typing import Final

from hybrid.scheduler import GenerateRequest, SamplingParams
from hybrid.scheduler.plan import ScheduledRequest, StepPlan

LONG: Final = tuple(range(7, 47))
"""A prompt of 40 tokens: more than one block of 32."""
SHORT: Final = (300, 5, 9, 112, 40)
LONG_BLOCKS: Final = (3, 1)
SHORT_BLOCKS: Final = (6,)


def entry(
    name: str,
    prompt: tuple[int, ...],
    tokens: tuple[int, ...],
    blocks: tuple[int, ...],
    *,
    past: int = 0,
    rows: int = 1,
) -> ScheduledRequest:
    """One sequence's share of a step."""
    request = GenerateRequest(name, prompt, SamplingParams())
    return ScheduledRequest(request, 0, tokens, past, blocks, rows, min(rows, 1))


def plan_of(num_contexts: int, *entries: ScheduledRequest) -> StepPlan:
    """One step."""
    return StepPlan(0, entries, num_contexts, (), (), ())


FIRST: Final = plan_of(
    2,
    entry("long", LONG, LONG[:32], LONG_BLOCKS[:1], rows=0),
    entry("short", SHORT, SHORT, SHORT_BLOCKS),
)
"""A chunk that is not the last, and a whole prompt."""
MIXED: Final = plan_of(
    1,
    entry("long", LONG, LONG[32:], LONG_BLOCKS, past=32),
    entry("short", SHORT, (77,), SHORT_BLOCKS, past=5),
)
"""The rest of the long prompt, and the short one's first generated token."""
DECODE: Final = plan_of(
    0,
    entry("long", LONG, (201,), LONG_BLOCKS, past=40),
    entry("short", SHORT, (88,), SHORT_BLOCKS, past=6),
)
