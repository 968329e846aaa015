"""An engine host over the null executor, without any protocol in front of it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hybrid import AsyncHybridEngine, HybridEngine, RequestOutput, SamplingParams
from hybrid.serving.admission import AdmissionLimits
from hybrid.serving.engine_host import EngineHost
from tests.serving.service_stand import TIMEOUT_S, model_of

T = TypeVar("T")


def with_host(
    engine: HybridEngine,
    body: Callable[[EngineHost], Awaitable[T]],
    limits: AdmissionLimits | None = None,
) -> T:
    """Run ``body`` over a host of this engine; bounded."""

    async def main() -> T:
        async with AsyncHybridEngine(engine) as asynchronous:
            host = EngineHost(asynchronous, model_of(engine), limits)
            async with asyncio.timeout(TIMEOUT_S):
                return await body(host)

    return asyncio.run(main())


async def ask(
    host: EngineHost, request_id: str, prompt: Sequence[int], params: SamplingParams
) -> list[RequestOutput]:
    """Every output of one request."""
    outputs = host.generate(
        prompt, params, request_id=request_id, num_prompt_tokens=len(prompt)
    )
    return [output async for output in outputs]
