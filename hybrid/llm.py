"""The offline API: prompts in, answers out. Names follow vLLM 0.32 (``vllm.LLM``)."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler import (
    EngineFailed,
    InvalidRequest,
    SamplingParams,
)

from .batch_arguments import list_conversations, one_each
from .batch_progress import BatchProgress
from .engine import HybridEngine
from .engine_builder import build_engine
from .engine_config import EngineConfig
from .outputs import RequestOutput
from .processed_request import ProcessedRequest
from .prompt import Prompt, TokensPrompt, is_one_prompt
from .sole_use import SoleUse

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}`` and whatever else the chat template reads."""


_IN_USE: Final = (
    "this LLM is in use by another thread, or by a call that this one was made within; "
    "use AsyncHybridEngine"
)


class LLM:
    """A model and its engine, for a program that has its prompts at hand.

    For one thread at a time: a call while another's is running raises
    ``UnsupportedFeature`` and leaves that one alone. ``AsyncHybridEngine`` serves many
    callers.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        progress: ProgressCallback | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model: a known name, a directory, a .gguf file or a Hugging Face id.
            progress: told how far fetching, converting and loading are.
            **options: the fields of ``EngineConfig``.

        Raises:
            ConfigError: an option is unknown (names the nearest) or out of range.
            CheckpointError: the model cannot be found or read.
            UnsupportedFeature: the executor cannot run it.
        """
        if model is not None:
            options["model"] = model
        config = EngineConfig(**options)
        self.llm_engine: Final[HybridEngine] = build_engine(
            config, progress=progress, log_requests=False
        )
        self._ids: Final = map(str, count())
        self._streams: Final[dict[str, RequestOutput | None]] = {}
        """Open streams by request id, each with the newest output not yet read."""
        self._left: Final[deque[str]] = deque()
        """Streams that nobody reads any more, until whoever steps next aborts them."""
        self._use: Final = SoleUse(_IN_USE)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts; all run together under the scheduler.

        Args:
            prompts: text, token ids, a mapping of either; or a sequence of them.
            sampling_params: for all, or one per prompt; ``None``: the defaults.
            use_tqdm: whether to show progress on a terminal (the name is vLLM's).
            priority: one per prompt; lower runs first under the priority policy.

        Returns:
            One output per prompt, in order.

        Raises:
            InvalidRequest: a prompt or parameter is at fault; nothing was run.
            EngineFailed: the executor (``ExecutorFailed``) or another part failed;
                the engine has ended.
        """
        batch: list[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        params = one_each("sampling_params", sampling_params, len(batch))
        priorities = one_each("priority", priority, len(batch))
        with self._use():
            return self._run(batch, params, priorities, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several together.

        Args:
            messages: a conversation, or a sequence of them.
            sampling_params: for all, or one per conversation.
            use_tqdm: whether to show progress on a terminal.
            tools: tools for the chat template.
            add_generation_prompt: whether the template opens the answer.
            **template_variables: more variables for the template.

        Raises:
            InvalidRequest: no template, or it refuses the messages; nothing was run.
        """
        conversations = list_conversations(messages)
        prompts = [
            self._chat_prompt(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **template_variables,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Continue one prompt, yielding the answer so far after every step.

        The request runs while its iterator, or anything else of this engine, is
        driven; leaving the iterator early aborts it. Several may be open at once.
        """
        with self._use():
            processed = self.llm_engine.input_processor.process(
                next(self._ids), prompt, sampling_params
            )
        return self._follow(processed)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        **template_variables: Any,
    ) -> Iterator[RequestOutput]:
        """Answer one conversation, as ``stream``."""
        prompt = self._chat_prompt(messages, **template_variables)
        return self.stream(prompt, sampling_params)

    def close(self) -> None:
        """Free the model and the KV pool. Twice is no error."""
        with self._use():
            self.llm_engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _chat_prompt(self, messages: Sequence[Message], **options: Any) -> TokensPrompt:
        tokenizer = self.llm_engine.tokenizer
        if tokenizer is None:
            raise InvalidRequest(
                "messages need a tokenizer, and the engine has none",
                field="messages",
                value=None,
            )
        with self._use():
            ids = tokenizer.apply_chat_template(messages, **options)
        return {"prompt_token_ids": ids}

    def _follow(self, processed: ProcessedRequest) -> Iterator[RequestOutput]:
        """Run a request as far as its answers are asked for."""
        engine, request_id = self.llm_engine, processed.request.request_id
        with self._use():
            engine.add_processed(processed)
            self._streams[request_id] = None
        try:
            while True:
                output = self._streams[request_id]
                if output is None:
                    with self._use.continued():
                        # Whoever came between may have brought it.
                        if self._streams[request_id] is not None:
                            continue
                        if not engine.has_unfinished_requests():
                            return
                        self._step()
                    continue
                self._streams[request_id] = None
                yield output
                if output.finished:
                    return
        finally:
            # A reader that goes, or is collected, does so in any thread at any time.
            self._left.append(request_id)
            with self._use.if_free() as is_free:
                if is_free:
                    self._abort_left()

    def _step(self) -> list[RequestOutput]:
        """Run one step; keeps the newest output of each open stream for its reader.

        Returns:
            The outputs of requests that are no streams.
        """
        self._abort_left()
        others = []
        for output in self.llm_engine.step():
            if output.request_id in self._streams:
                self._streams[output.request_id] = output
            else:
                others.append(output)
        return others

    def _abort_left(self) -> None:
        while self._left:
            request_id = self._left.popleft()
            del self._streams[request_id]
            self.llm_engine.abort(request_id)

    def _process(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | None],
        priorities: Sequence[int | None],
    ) -> list[ProcessedRequest]:
        """Check every prompt before any is queued; an error says which it was."""
        processed = []
        for index, prompt in enumerate(prompts):
            try:
                processed.append(
                    self.llm_engine.input_processor.process(
                        next(self._ids),
                        prompt,
                        params[index],
                        priority=priorities[index] or 0,
                    )
                )
            except InvalidRequest as error:
                if len(prompts) > 1:
                    error.args = (f"prompt {index} of {len(prompts)}: {error}",)
                raise
        return processed

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | None],
        priorities: Sequence[int | None],
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        engine = self.llm_engine
        processed = self._process(prompts, params, priorities)
        ids = [one.request.request_id for one in processed]
        done: dict[str, RequestOutput] = {}
        try:
            for one in processed:
                engine.add_processed(one, stream=False)
            with BatchProgress(len(ids), is_shown=use_tqdm) as progress:
                while len(done) < len(ids) and engine.has_unfinished_requests():
                    for output in self._step():
                        done[output.request_id] = output
                        progress.advance(output)
        except EngineFailed as error:
            # The caller has been given none of these either.
            error.outputs = (*done.values(), *error.outputs)
            raise
        finally:
            # Whatever ends this early, an interrupt say, leaves no request behind.
            for request_id in ids:
                if request_id not in done:
                    engine.abort(request_id)
            self._abort_left()
        return [done[request_id] for request_id in ids]
