"""Many requests on one stream, answered side by side: ``ModelStreamInfer``.

    client:  A ---- B ------------ end
    server:     a1    b1 a2 a3(final) b2(final)     OK

A request that fails is told so in the stream, and the others go on.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc

from .answer_writer import AnswerWriter, ClientStalled
from .kserve_messages import MESSAGES
from .request_decoding import decode
from .rpc_errors import reported_status

MAX_UNANSWERED: Final = 256
"""Requests of one stream that are taken before some are answered. Whoever sends
without reading waits: flow control holds the rest back at the client."""

Answers = Callable[[Any], AsyncGenerator[Any]]
"""From a ``ModelInferRequest`` to its ``ModelInferResponse`` messages."""


class InferStream:
    """One call of ``ModelStreamInfer``."""

    def __init__(self, context: Any, answers: Answers) -> None:
        self._context: Final = context
        self._writer: Final = AnswerWriter(context)
        self._answers: Final = answers
        self._room: Final = asyncio.Semaphore(MAX_UNANSWERED)
        self._turn: Final = asyncio.Lock()
        """gRPC takes one message of a stream at a time."""

    async def run(self) -> None:
        """Answer until the client has said all and every request has ended."""
        stalled: ClientStalled | None = None
        try:
            async with asyncio.TaskGroup() as running:
                while True:
                    await self._room.acquire()
                    data = await self._context.read()
                    if data is grpc.aio.EOF:
                        break
                    running.create_task(self._answer(data))
        except* ClientStalled as errors:
            # Two may have waited for their turn; they have the same to tell.
            stalled = ClientStalled(str(errors.exceptions[0]))
        except* grpc.aio.InternalError:
            pass  # A write met a lost connection: nobody is left to be told.
        finally:
            self._writer.close()
        if stalled is not None:
            raise stalled

    async def _answer(self, data: bytes) -> None:
        request = MESSAGES["ModelInferRequest"]()
        try:
            request = decode(type(request), data)
            async with aclosing(self._answers(request)) as answers:
                async for response in answers:
                    await self._send(infer_response=response)
        except (grpc.aio.BaseError, ClientStalled):
            raise
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            _, message, _ = reported_status(error)
            nameless = MESSAGES["ModelInferResponse"](
                model_name=request.model_name, id=request.id
            )
            await self._send(error_message=message, infer_response=nameless)
        finally:
            self._room.release()

    async def _send(self, **parts: Any) -> None:
        message = MESSAGES["ModelStreamInferResponse"](**parts)
        async with self._turn:
            await self._writer.write(message)
