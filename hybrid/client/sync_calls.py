"""Calls of one server over one channel, made again where that may help."""

import os
import time
from collections.abc import Generator
from typing import Any, Final

import grpc
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid.scheduler import EngineClosed

from .channel_settings import channel_settings
from .client_options import INFO_TIMEOUT_S, ClientOptions, read_token
from .retry import Attempts, RetryPolicy
from .rpc_failed import RpcFailed


class Calls:
    """Threads may share it.

    Every method raises the error that a failed call stands for, the status as its
    cause.
    """

    def __init__(self, address: str, options: ClientOptions) -> None:
        """Connects with the first call; arguments and errors are the client's."""
        settings = channel_settings(
            address, options, read_token(options.token_file, os.environ)
        )
        target, credentials = settings.target, settings.credentials
        self._channel: Final = (
            grpc.insecure_channel(target, settings.options)
            if credentials is None
            else grpc.secure_channel(target, credentials, settings.options)
        )
        self._stub: Final[Any] = pb_grpc.VllmEngineStub(self._channel)
        self._metadata: Final = settings.metadata
        self._policy: Final = options.retry
        self._is_closed = False

    def ask(self, method: str, request: Any, policy: RetryPolicy | None = None) -> Any:
        """The answer of a call that gives one message.

        Args:
            method: of the service.
            request: its message.
            policy: instead of the options'.
        """
        attempts = Attempts(policy or self._policy, INFO_TIMEOUT_S)
        while True:
            try:
                return self._start(method, request, attempts)
            except grpc.RpcError as error:
                failure = RpcFailed.of(error)
            self._check_open()
            time.sleep(attempts.next_wait_s(failure))

    def messages(
        self, method: str, request: Any, timeout_s: float | None
    ) -> Generator[Any]:
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
                for message in call:
                    attempts.has_begun = True
                    yield message
            except grpc.RpcError as error:
                failure = RpcFailed.of(error)
            else:
                return
            finally:
                # Whoever leaves early, by Ctrl-C say, frees what the server holds.
                call.cancel()
            self._check_open()
            time.sleep(attempts.next_wait_s(failure))

    def close(self) -> None:
        """End the connection, and the calls that are under way."""
        self._is_closed = True
        self._channel.close()

    def _start(self, method: str, request: Any, attempts: Attempts) -> Any:
        self._check_open()
        start = getattr(self._stub, method)
        return start(request, timeout=attempts.remaining_s, metadata=self._metadata)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineClosed("the client is closed")
