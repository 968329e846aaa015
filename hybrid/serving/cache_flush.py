"""Empties the prefix cache, now or once the engine is idle."""

import asyncio
from typing import Final

from hybrid.async_engine import AsyncHybridEngine
from hybrid.scheduler.field_checks import as_float

RETRY_S: Final = 0.1
ATTEMPT_S: Final = 30.0
"""How long one attempt may wait for the step that is running."""
MAX_TIMEOUT_S: Final = 86400.0


async def flush_cache(engine: AsyncHybridEngine, timeout_s: float) -> bool:
    """Forget cached prefixes.

    Args:
        engine: whose.
        timeout_s: how long to wait for requests to end; 0: one attempt.

    Returns:
        Whether it is done; ``False``: requests are running, and there was no waiting.

    Raises:
        InvalidRequest: ``timeout_s`` is no such time.
        TimeoutError: requests were running all the while.
        EngineClosed: the engine has ended.
    """
    timeout_s = as_float("timeout_s", timeout_s, 0.0, MAX_TIMEOUT_S)
    try:
        async with asyncio.timeout(timeout_s or ATTEMPT_S):
            while not await engine.reset_prefix_cache():
                if not timeout_s:
                    return False
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise TimeoutError(
            f"requests were running for the {timeout_s or ATTEMPT_S:g} s of the wait"
        ) from None
    return True
