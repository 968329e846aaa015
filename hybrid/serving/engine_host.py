"""The one engine behind all services: takes requests within limits, drains, ends.

Knows no protocol. Everything here runs in the event loop that serves.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import StrEnum
from typing import Final, Protocol

from hybrid.async_engine import AsyncHybridEngine
from hybrid.kv_event_hub import KvEventBatch
from hybrid.metrics import EngineSnapshot
from hybrid.outputs import RequestOutput
from hybrid.prompt import Prompt
from hybrid.scheduler import EngineClosed, Overloaded, SamplingParams

from .admission import RETRY_AFTER_S, Admission, AdmissionLimits, Place
from .prompt_load import PromptLoad
from .served_model import ServedModel

MAX_KV_SUBSCRIBERS: Final = 16
"""Routers are few, and each costs the engine's thread a walk through all the cache."""


class HostState(StrEnum):
    """Whether requests are taken."""

    READY = "ready"
    DRAINING = "draining"
    """Those that are in go on; no more are taken."""
    FAILED = "failed"
    """The engine has ended by an error."""


class RequestWatcher(Protocol):
    """Whoever counts, times or traces requests; called in the event loop.

    Each request that was let in begins once and ends once; ids in use are distinct.
    """

    def began(self, request_id: str, params: SamplingParams) -> None:
        """A request was let in; called in the context of its client's call."""
        ...

    def progressed(self, output: RequestOutput) -> None:
        """An answer has grown, or has ended."""
        ...

    def ended(self, request_id: str, end: RequestOutput | BaseException) -> None:
        """A request is over: its last output, or what ended it before there was one.

        That is a ``CancelledError`` or ``GeneratorExit`` where its client has left.
        """
        ...


class EngineHost:
    """Shared by every service of a server."""

    def __init__(
        self,
        engine: AsyncHybridEngine,
        model: ServedModel,
        limits: AdmissionLimits | None = None,
    ) -> None:
        self.engine: Final = engine
        self.model: Final = model
        self.admission: Final = Admission(limits or AdmissionLimits())
        self.prompts: Final = PromptLoad()
        self.watchers: Final[list[RequestWatcher]] = []
        self.started_s: Final = time.time()
        self.last_request_s = 0.0
        """Unix time of the newest request; 0: there was none."""
        self._is_draining = False
        self._num_kv_subscribers = 0
        self._live: Final[set[str]] = set()
        self._is_idle: Final = asyncio.Event()
        self._is_idle.set()

    @property
    def state(self) -> HostState:
        """Whether requests are taken now."""
        if self._is_draining:
            return HostState.DRAINING
        return HostState.READY if self.engine.is_running else HostState.FAILED

    @property
    def num_requests(self) -> int:
        """Requests that have been taken and are not over."""
        return len(self._live)

    def stats(self) -> EngineSnapshot:
        """Counters and gauges as of the last step."""
        return self.engine.stats()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str,
        num_prompt_tokens: int,
        stream: bool = True,
    ) -> AsyncGenerator[RequestOutput]:
        """Continue one prompt; as ``AsyncHybridEngine.generate``, within limits.

        Args:
            prompt: text or token ids.
            params: checked.
            request_id: not in use.
            num_prompt_tokens: of the prompt, or an estimate; for the limits.
            stream: ``False``: outputs come only where a sample begins or ends.

        Raises:
            Overloaded: the server is full.
            EngineClosed: it drains, or the engine has ended.
            InvalidRequest: the request is at fault.
            EngineFailed: the engine failed while this request ran.
        """
        place = self._enter(request_id, num_prompt_tokens, params)
        end: RequestOutput | BaseException | None = None
        for watcher in self.watchers:
            watcher.began(request_id, params)
        outputs = self.engine.generate(
            prompt,
            params,
            request_id=request_id,
            stream=stream,
            # Others may come in, however long a client takes to read its answer.
            ended=place.leave,
        )
        try:
            async for output in outputs:
                self.prompts.progressed(output)
                for watcher in self.watchers:
                    watcher.progressed(output)
                if output.finished:
                    end = output
                yield output
        except BaseException as error:
            end = end or error
            raise
        finally:
            # Closed here, not when it is collected: the blocks are free at once.
            await outputs.aclose()
            assert end is not None, "a stream ends with a last output or an error"
            place.leave()
            self._leave(request_id)
            for watcher in self.watchers:
                watcher.ended(request_id, end)

    def _enter(
        self, request_id: str, num_prompt_tokens: int, params: SamplingParams
    ) -> Place:
        """Take a request in."""
        if self._is_draining:
            raise EngineClosed("the server is shutting down")
        place = self.admission.enter(self._most_tokens(num_prompt_tokens, params))
        self.last_request_s = time.time()
        self.prompts.came(request_id, num_prompt_tokens)
        self._live.add(request_id)
        self._is_idle.clear()
        return place

    def _most_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """What a request may come to hold: every sample ends where the context does."""
        most = max(self.model.max_model_len - num_prompt_tokens, 0)
        asked = most if params.max_tokens is None else min(params.max_tokens, most)
        return num_prompt_tokens + params.n * asked

    def _leave(self, request_id: str) -> None:
        self.prompts.left(request_id)
        self._live.discard(request_id)
        if not self._live:
            self._is_idle.set()

    async def subscribe_kv_events(self) -> AsyncGenerator[KvEventBatch]:
        """Tell what the prefix cache holds; as the engine's own, within a limit.

        Raises:
            Overloaded: there are as many subscribers as may be, or this one has fallen
                behind.
            UnsupportedFeature: the engine's scheduler cannot tell.
            EngineClosed: the engine has ended.
        """
        if self._num_kv_subscribers >= MAX_KV_SUBSCRIBERS:
            raise Overloaded(
                f"there are {MAX_KV_SUBSCRIBERS} subscribers to KV events, the most "
                "that may be",
                retry_after_s=RETRY_AFTER_S,
            )
        self._num_kv_subscribers += 1
        try:
            async with aclosing(self.engine.subscribe_kv_events()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._num_kv_subscribers -= 1

    def abort(self, request_id: str) -> None:
        """End a request with finish reason ``abort``; unknown is no error."""
        self.engine.abort(request_id)

    def begin_drain(self) -> None:
        """Take no more requests."""
        self._is_draining = True

    async def drain(self, timeout_s: float) -> None:
        """Let requests end for a while, then end the rest as aborted."""
        self.begin_drain()
        try:
            await asyncio.wait_for(self._is_idle.wait(), timeout_s)
        except TimeoutError:
            for request_id in tuple(self._live):
                self.abort(request_id)
