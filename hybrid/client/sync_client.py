"""The client for threads and scripts."""

import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from hybrid.prompt import Prompt
from hybrid.scheduler import HybridError, SamplingParams

from .answer_part import AnswerPart
from .answer_reader import AnswerReader
from .client_options import (
    TOKENIZER_TIMEOUT_S,
    ClientOptions,
    check_timeout,
)
from .question import Message, Question, messages_question, prompt_question
from .retry import RetryPolicy
from .server_facts import ModelInfo, ServerHealth, ServerLoad
from .sync_calls import Calls
from .tokenizer_download import TokenizerDownload, says_none

if TYPE_CHECKING:
    # Text is an extra: without it ids go in and out.
    from hybrid.tokenizer.tokenizer import Tokenizer


class HybridClient:
    """Talks to one server; threads may share it. Close it, or use ``with``.

    Every method raises the error that a failed call stands for, with the status as its
    ``__cause__`` (``RpcFailed``): ``InvalidRequest``, ``Overloaded``, ``EngineClosed``
    where no server answers, ``TimeoutError``, ...
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
        self._calls: Final = Calls(address, self._options)
        self._lock: Final = threading.Lock()
        """Held while the tokenizer is fetched: once is enough."""
        self._tokenizer: Tokenizer | None = None
        self._server_has_none = False

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[AnswerPart, ...]:
        """Continue a prompt; returns the samples, whole, by index.

        Args:
            prompt: text, token ids, or a mapping of either.
            sampling_params: ``None``: the engine's defaults.
            request_id: for ``abort`` and the server's log; ``None``: a new one.
            timeout_s: ``None``: as the options say.
        """
        question = prompt_question(
            prompt, sampling_params, request_id=request_id, stream=False
        )
        return self._whole(question, timeout_s)

    def chat(
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
        return self._whole(question, timeout_s)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Generator[AnswerPart]:
        """Continue a prompt, part by part; arguments as in ``generate``.

        The request is sent when the first part is asked for. Closing the iterator, or
        leaving its loop by an exception, aborts it.
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
    ) -> Generator[AnswerPart]:
        """Answer a conversation, as ``stream``."""
        question = messages_question(
            messages,
            sampling_params,
            template_variables,
            request_id=request_id,
            stream=True,
        )
        return self._parts(question, timeout_s)

    def abort(self, request_id: str) -> None:
        """End a request with finish reason ``abort``; unknown is no error."""
        self._calls.ask("Abort", pb.AbortRequest(request_ids=[request_id]))

    def health(self) -> ServerHealth:
        """Whether the server takes requests; asked once."""
        answer = self._calls.ask(
            "HealthCheck",
            pb.HealthCheckRequest(),
            RetryPolicy(max_retries=0),
        )
        return ServerHealth(answer.healthy, answer.message)

    def model_info(self) -> ModelInfo:
        """What is served."""
        return ModelInfo.of(self._calls.ask("GetModelInfo", pb.GetModelInfoRequest()))

    def loads(self) -> tuple[ServerLoad, ...]:
        """How busy each of the server's schedulers is."""
        answer = self._calls.ask("GetLoads", pb.GetLoadsRequest())
        return tuple(ServerLoad.of(load) for load in answer.loads)

    def tokenizer(self) -> "Tokenizer":
        """The model's tokenizer, fetched once.

        Raises:
            CheckpointError: what the server sends is refused.
        """
        with self._lock:
            if self._tokenizer is None:
                download = TokenizerDownload()
                chunks = self._calls.messages(
                    "GetTokenizer",
                    common_pb2.GetTokenizerRequest(),
                    TOKENIZER_TIMEOUT_S,
                )
                with closing(chunks):
                    for chunk in chunks:
                        download.take(chunk)
                self._tokenizer = download.load()
            return self._tokenizer

    def close(self) -> None:
        """End the connection, and the calls that are under way. Twice is no error."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _whole(
        self, question: Question, timeout_s: float | None
    ) -> tuple[AnswerPart, ...]:
        parts = self._parts(question, timeout_s)
        return tuple(sorted(parts, key=lambda part: part.index))

    def _parts(
        self, question: Question, timeout_s: float | None
    ) -> Generator[AnswerPart]:
        """Prepare at once, so that a wrong request fails where it is made."""
        check_timeout(timeout_s)
        tokenizer = self._tokenizer_for(question)
        token_ids = question.encoded(tokenizer)
        reader = AnswerReader(
            question.params, token_ids, tokenizer, stream=question.stream
        )
        return self._read(question.message(token_ids), reader, timeout_s)

    def _read(
        self, request: Any, reader: AnswerReader, timeout_s: float | None
    ) -> Generator[AnswerPart]:
        messages = self._calls.messages(
            "Generate", request, timeout_s or self._options.timeout_s
        )
        with closing(messages):
            for message in messages:
                yield reader.take(message)
        reader.check_end()

    def _tokenizer_for(self, question: Question) -> "Tokenizer | None":
        """What a question needs; ids get by without where the server has none."""
        if not question.wants_tokenizer:
            return None
        if question.encode is None and self._server_has_none:
            return None
        try:
            return self.tokenizer()
        except HybridError as error:
            self._server_has_none = says_none(error)
            if question.encode is None and self._server_has_none:
                return None
            raise
