"""Calls of one server over one channel, from an event loop."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc.aio
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid.scheduler import EngineClosed

from .channel_settings import channel_settings
from .client_options import INFO_TIMEOUT_S, ClientOptions, read_token
from .retry import Attempts, RetryPolicy
from .rpc_failed import RpcFailed


class AsyncCalls:
    """``Calls`` for the event loop that runs when it is made; tasks may share it."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        """Connects with the first call; arguments and errors are the client's."""
        settings = channel_settings(
            address, options, read_token(options.token_file, os.environ)
        )
        target, credentials = settings.target, settings.credentials
        self._channel: Final = (
            grpc.aio.insecure_channel(target, settings.options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, settings.options)
        )
        self._stub: Final[Any] = pb_grpc.VllmEngineStub(self._channel)
        self._metadata: Final = settings.metadata
        self._policy: Final = options.retry
        self._is_closed = False

    async def ask(
        self, method: str, request: Any, policy: RetryPolicy | None = None
    ) -> Any:
        """The answer of a call that gives one message.

        Args:
            method: of the service.
            request: its message.
            policy: instead of the options'.
        """
        attempts = Attempts(policy or self._policy, INFO_TIMEOUT_S)
        while True:
            try:
                with self._closing_is_an_error():
                    return await self._start(method, request, attempts)
            except grpc.RpcError as error:
                failure = RpcFailed.of(error)
            self._check_open()
            await asyncio.sleep(attempts.next_wait_s(failure))

    async def messages(
        self, method: str, request: Any, timeout_s: float | None
    ) -> AsyncGenerator[Any]:
        """Every message of a call; it is made again while nothing has come of it.

        Args:
            method: of the service.
            request: its message.
            timeout_s: from now to the last message; ``None``: no end.
        """
        attempts = Attempts(self._policy, timeout_s)
        while True:
            call = self._start(method, request, attempts)
            try:
                with self._closing_is_an_error():
                    async for message in call:
                        attempts.has_begun = True
                        yield message
            except grpc.RpcError as error:
                failure = RpcFailed.of(error)
            else:
                return
            finally:
                # Whoever leaves early frees what the server holds.
                call.cancel()
            self._check_open()
            await asyncio.sleep(attempts.next_wait_s(failure))

    async def close(self) -> None:
        """End the connection, and the calls that are under way."""
        self._is_closed = True
        await self._channel.close()

    def _start(self, method: str, request: Any, attempts: Attempts) -> Any:
        self._check_open()
        start = getattr(self._stub, method)
        return start(request, timeout=attempts.remaining_s, metadata=self._metadata)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineClosed("the client is closed")

    @contextmanager
    def _closing_is_an_error(self) -> Iterator[None]:
        """Tell a call that ``close`` has ended from a task that is cancelled.

        Source: grpc.aio 1.85 raises ``CancelledError`` for both.
        """
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_open()
            raise
