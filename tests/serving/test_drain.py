"""The end of a server's patience: whoever still runs is told ``abort``, at once."""

import asyncio
from typing import Any

from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.service_stand import Served, generate, request, serve, until

LONG: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}


def test_a_step_that_does_not_end_keeps_no_client_from_its_last_message() -> None:
    """Those that run and those that wait are answered while the step is held."""
    executor = HeldExecutor(num_free_steps=1)
    engine = make_engine(num_blocks=64, max_num_seqs=1, executor=executor)

    async def body(served: Served) -> list[list[Any]]:
        calls = [
            asyncio.create_task(
                generate(served, request([1, 2, 3], request_id=name, **LONG))
            )
            for name in ("runs", "waits")
        ]
        await until(lambda: served.host.num_requests == 2)
        await until(lambda: engine.stats().generation_tokens_total == 1)
        await served.host.drain(0.0)
        answers = await asyncio.gather(*calls)
        assert served.host.num_requests == 0
        executor.let_go()
        return answers

    for (complete,) in serve(engine, body):
        assert complete.finish_reason == "abort"
        assert complete.prompt_tokens == 3
