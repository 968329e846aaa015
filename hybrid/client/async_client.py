"""The client for programs that run an event loop."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from hybrid.prompt import Prompt
from hybrid.scheduler import HybridError, SamplingParams

from .answer_part import AnswerPart
from .answer_reader import AnswerReader
from .async_calls import AsyncCalls
from .client_options import (
    TOKENIZER_TIMEOUT_S,
    ClientOptions,
    check_timeout,
)
from .question import Message, Question, messages_question, prompt_question
from .retry import RetryPolicy
from .server_facts import ModelInfo, ServerHealth, ServerLoad
from .tokenizer_download import TokenizerDownload, says_none

if TYPE_CHECKING:
    # Text is an extra: without it ids go in and out.
    from hybrid.tokenizer.tokenizer import Tokenizer


class AsyncHybridClient:
    """Talks to one server; tasks may share it. Close it, or use ``async with``.

    Belongs to the loop that runs when it is made. Arguments, answers and errors are
    those of ``HybridClient``; cancelling a task aborts its request.
    """

    def __init__(self, address: str, options: ClientOptions | None = None) -> None:
        """Connects with the first call.

        Args:
            address: ``host:port``.
            options: transport, identity, patience, limits.

        Raises:
            ConfigError: an option cannot be; names it.
            OSError: a file that an option names cannot be read.
        """
        self._options: Final = options or ClientOptions()
        self._calls: Final = AsyncCalls(address, self._options)
        self._lock: Final = asyncio.Lock()
        """Held while the tokenizer is fetched: once is enough."""
        self._tokenizer: Tokenizer | None = None
        self._server_has_none = False

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[AnswerPart, ...]:
        """Continue a prompt; returns the samples, whole, by index."""
        question = prompt_question(
            prompt, sampling_params, request_id=request_id, stream=False
        )
        return await self._whole(question, timeout_s)

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **template_variables: Any,
    ) -> tuple[AnswerPart, ...]:
        """Answer a conversation, as ``generate``."""
        question = messages_question(
            messages,
            sampling_params,
            template_variables,
            request_id=request_id,
            stream=False,
        )
        return await self._whole(question, timeout_s)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[AnswerPart]:
        """Continue a prompt, part by part.

        Closing the iterator aborts the request; a loop that is left early is to close
        it (``contextlib.aclosing``).
        """
        question = prompt_question(
            prompt, sampling_params, request_id=request_id, stream=True
        )
        return self._parts(question, timeout_s)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **template_variables: Any,
    ) -> AsyncGenerator[AnswerPart]:
        """Answer a conversation, as ``stream``."""
        question = messages_question(
            messages,
            sampling_params,
            template_variables,
            request_id=request_id,
            stream=True,
        )
        return self._parts(question, timeout_s)

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason ``abort``; unknown is no error."""
        await self._calls.ask("Abort", pb.AbortRequest(request_ids=[request_id]))

    async def health(self) -> ServerHealth:
        """Whether the server takes requests; asked once."""
        answer = await self._calls.ask(
            "HealthCheck",
            pb.HealthCheckRequest(),
            RetryPolicy(max_retries=0),
        )
        return ServerHealth(answer.healthy, answer.message)

    async def model_info(self) -> ModelInfo:
        """What is served."""
        return ModelInfo.of(
            await self._calls.ask("GetModelInfo", pb.GetModelInfoRequest())
        )

    async def loads(self) -> tuple[ServerLoad, ...]:
        """How busy each of the server's schedulers is."""
        answer = await self._calls.ask("GetLoads", pb.GetLoadsRequest())
        return tuple(ServerLoad.of(load) for load in answer.loads)

    async def tokenizer(self) -> "Tokenizer":
        """The model's tokenizer, fetched once."""
        async with self._lock:
            if self._tokenizer is None:
                download = TokenizerDownload()
                chunks = self._calls.messages(
                    "GetTokenizer",
                    common_pb2.GetTokenizerRequest(),
                    TOKENIZER_TIMEOUT_S,
                )
                async with aclosing(chunks):
                    async for chunk in chunks:
                        download.take(chunk)
                self._tokenizer = await asyncio.to_thread(download.load)
            return self._tokenizer

    async def close(self) -> None:
        """End the connection, and the calls that are under way. Twice is no error."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _whole(
        self, question: Question, timeout_s: float | None
    ) -> tuple[AnswerPart, ...]:
        parts = [part async for part in self._parts(question, timeout_s)]
        return tuple(sorted(parts, key=lambda part: part.index))

    async def _parts(
        self, question: Question, timeout_s: float | None
    ) -> AsyncGenerator[AnswerPart]:
        check_timeout(timeout_s)
        tokenizer = await self._tokenizer_for(question)
        # A long text takes a while; the loop has others to serve.
        token_ids = await asyncio.to_thread(question.encoded, tokenizer)
        reader = AnswerReader(
            question.params, token_ids, tokenizer, stream=question.stream
        )
        messages = self._calls.messages(
            "Generate",
            question.message(token_ids),
            timeout_s or self._options.timeout_s,
        )
        async with aclosing(messages):
            async for message in messages:
                yield reader.take(message)
        reader.check_end()

    async def _tokenizer_for(self, question: Question) -> "Tokenizer | None":
        """What a question needs; ids get by without where the server has none."""
        if not question.wants_tokenizer:
            return None
        if question.encode is None and self._server_has_none:
            return None
        try:
            return await self.tokenizer()
        except HybridError as error:
            self._server_has_none = says_none(error)
            if question.encode is None and self._server_has_none:
                return None
            raise
