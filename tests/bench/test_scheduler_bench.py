"""What one step of the scheduler costs; run with ``--benchmark-enable``.

Measured: ``schedule()`` and ``update()`` of running decodes, block growth included,
alone and with a request in the queue that lacks blocks. The goal is 5 microseconds a
request and step at 256 requests.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hybrid.scheduler import PagedScheduler, SchedulerConfig
from tests.scheduler.factories import make_request

ROUNDS = 200
PROMPT_TOKENS = 128


def running_scheduler(num_requests: int) -> PagedScheduler:
    """A scheduler whose requests have all been prefilled."""
    scheduler = PagedScheduler(
        SchedulerConfig(
            block_size=16,
            num_blocks=num_requests * 64,
            max_model_len=num_requests * 1024,
            max_num_seqs=num_requests + 1,
            max_num_batched_tokens=num_requests * PROMPT_TOKENS,
        )
    )
    for index in range(num_requests):
        prompt = range(index, index + PROMPT_TOKENS)
        scheduler.add(make_request(f"r{index}", prompt))
    plan = scheduler.schedule()
    scheduler.update(plan, [(7,)] * num_requests)
    return scheduler


@pytest.mark.parametrize("num_waiting", [0, 1])
@pytest.mark.parametrize("num_requests", [16, 128, 256])
def test_decode_step(
    benchmark: BenchmarkFixture, num_requests: int, num_waiting: int
) -> None:
    """Every request gets its token in every step."""
    scheduler = running_scheduler(num_requests)
    for _ in range(num_waiting):
        # There is a place for it, but it needs nearly the whole pool.
        scheduler.add(make_request("waiting", num_requests * 1000))
    sampled = [(7,)] * num_requests

    def step() -> int:
        plan = scheduler.schedule()
        return len(scheduler.update(plan, sampled))

    updated = benchmark.pedantic(step, rounds=ROUNDS, warmup_rounds=20)
    assert updated == num_requests
    if benchmark.enabled:
        cost_s = benchmark.stats.stats.median / num_requests
        benchmark.extra_info["us_per_request"] = round(cost_s * 1e6, 3)
