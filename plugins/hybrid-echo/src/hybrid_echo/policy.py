"""A scheduling policy: the engine's paged scheduler, in another order."""

from hybrid.api import GenerateRequest, PagedScheduler, Scheduler, SchedulerConfig


def num_prompt_tokens(request: GenerateRequest) -> int:
    """Rank a request: the lowest rank is served first, the highest gives way."""
    return len(request.prompt_token_ids)


def shortest_prompt_first(config: SchedulerConfig) -> Scheduler:
    """Make the scheduler that goes by the name ``shortest-prompt``."""
    return PagedScheduler(config, rank=num_prompt_tokens)
