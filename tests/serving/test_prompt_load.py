"""What a router is told of prompts: those that wait, and what the cache spares."""

import asyncio

import pytest

from hybrid import RequestOutput, SamplingParams
from hybrid.outputs import RequestMetrics
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.prompt_load import MAX_LOOK_UPS, PromptLoad
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.host_stand import ask, with_host
from tests.serving.service_stand import until

PARAMS = SamplingParams(temperature=0, max_tokens=3)


def first_output(
    request_id: str, num_cached: int, queue_s: float = 0.0
) -> RequestOutput:
    """An output of a prompt of ten tokens."""
    metrics = RequestMetrics(
        queue_s=None if queue_s < 0 else queue_s,
        ttft_s=None,
        total_s=0.0,
        num_prompt_tokens=10,
        num_output_tokens=1,
        num_cached_tokens=num_cached,
        num_preemptions=0,
    )
    return RequestOutput(request_id, None, (1,) * 10, None, (), False, metrics)


def test_prompts_wait_until_they_are_answered() -> None:
    """The youngest are those in the queue; an answer, or an end, takes one out."""
    executor = HeldExecutor(num_free_steps=0)
    engine = make_engine(max_num_seqs=1, executor=executor)

    async def body(host: EngineHost) -> list[int]:
        asked = [
            asyncio.create_task(ask(host, name, [5] * count, PARAMS))
            for name, count in (("a", 5), ("b", 9), ("c", 2))
        ]
        await until(lambda: host.num_requests == 3)
        waiting = [host.prompts.num_waiting_uncached(count) for count in range(4)]
        asked[2].cancel()
        await until(lambda: host.num_requests == 2)
        waiting.append(host.prompts.num_waiting_uncached(1))
        executor.let_go()
        await asyncio.gather(*asked, return_exceptions=True)
        return [*waiting, host.prompts.num_waiting_uncached(9)]

    assert with_host(engine, body) == [0, 2, 11, 16, 9, 0]


def test_what_the_cache_holds_is_not_counted() -> None:
    """At the rate of those that were looked up before."""
    load = PromptLoad()
    load.came("a", 10)
    load.progressed(first_output("a", 4))
    load.progressed(first_output("a", 4))
    assert load.hit_rate == pytest.approx(0.4)
    load.came("b", 10)
    assert load.num_waiting_uncached(1) == 6


def test_old_look_ups_are_forgotten() -> None:
    """A server that has lost its cache says so after some requests, not at its end."""
    load = PromptLoad()
    for number in range(1000 + MAX_LOOK_UPS):
        load.came(str(number), 10)
        load.progressed(first_output(str(number), 10 if number < 1000 else 0))
    assert load.hit_rate == 0.0


def test_a_prompt_that_never_ran_was_not_looked_up() -> None:
    """An abort in the queue says nothing of the cache."""
    load = PromptLoad()
    for request_id, queue_s in (("a", 0.0), ("b", -1.0)):
        load.came(request_id, 10)
        load.progressed(first_output(request_id, 5, queue_s))
    assert load.hit_rate == pytest.approx(0.5)
    assert load.num_waiting_uncached(2) == 0
