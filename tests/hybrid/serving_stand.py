"""Runs an async engine for the length of one test, and reads its streams."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from hybrid import AsyncHybridEngine, HybridEngine, RequestOutput, SamplingParams

T = TypeVar("T")


def serve(engine: HybridEngine, body: Callable[[AsyncHybridEngine], Awaitable[T]]) -> T:
    """Run ``body`` over an async engine and close it; bounded: a hang is a failure."""

    async def main() -> T:
        async with AsyncHybridEngine(engine) as serving:
            async with asyncio.timeout(60):
                return await body(serving)

    return asyncio.run(main())


async def collect(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    """Read a stream to its end."""
    return [output async for output in stream]


async def read(
    serving: AsyncHybridEngine, prompt: Sequence[int], params: SamplingParams
) -> list[RequestOutput]:
    """Every output of one request."""
    return await collect(serving.generate(prompt, params))
