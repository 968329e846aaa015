"""From what a caller gives to what the scheduler takes: checked, in token ids.

Holds no state of a request: calls from several threads are safe.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hybrid.backends.interface import Capabilities
from hybrid.scheduler import (
    GenerateRequest,
    InvalidRequest,
    RequestTooLong,
    UnsupportedFeature,
)
from hybrid.scheduler.sampling_params import SamplingParams
from hybrid.scheduler.shown_value import shown
from hybrid.scheduler.structured_output import StructuredOutput

from .grammar.compiler import GrammarCompiler
from .processed_request import ProcessedRequest
from .prompt import Prompt, parse_prompt
from .sampler.validation import check_params

if TYPE_CHECKING:
    # Text is an extra: without it the engine takes and gives token ids.
    from .tokenizer.tokenizer import Tokenizer

MAX_REQUEST_ID_CHARACTERS: Final = 256
"""It is kept, logged and traced with all that happens to a request."""
SLACK: Final = 4
"""Normalisation may merge some characters into one before tokens are made."""
PLAIN_DRAW: Final[dict[str, Any]] = {
    "n": 1,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "logit_bias": {},
    "allowed_token_ids": None,
    "bad_words": (),
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "structured_output": None,
}
"""What every executor that samples itself can do: the likeliest token. Anything else
must be among its ``sampling_fields``."""


class InputProcessor:
    """Tokenizes prompts and refuses what the model or the executor cannot do."""

    def __init__(
        self,
        tokenizer: "Tokenizer | None",
        capabilities: Capabilities,
        *,
        vocab_size: int,
        max_logprobs: int,
        max_model_len: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer: Final = tokenizer
        self._eos_token_ids: Final[frozenset[int]] = (
            frozenset() if tokenizer is None else tokenizer.eos_token_ids
        )
        self._capabilities: Final = capabilities
        self._vocab_size: Final = vocab_size
        self._max_logprobs: Final = max_logprobs
        self._max_model_len: Final = max_model_len
        self._grammars: Final = _grammar_compiler(tokenizer)
        self._clock: Final = clock

    @property
    def vocab_size(self) -> int:
        """Ids that a request may name, and that can be drawn."""
        return self._vocab_size

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        priority: int = 0,
    ) -> ProcessedRequest:
        """Make a request; takes as long as its form takes to compile.

        Raises:
            InvalidRequest: names the field, its value and the limit.
            UnsupportedFeature: the executor cannot do it.
            Overloaded: too many other forms are to be compiled first.
        """
        request, text = self._read(request_id, prompt, params, priority)
        form = None
        output = request.sampling_params.structured_output
        if output is not None:
            form = self._compiler_of(output).compile(output)
        return ProcessedRequest(request, text, form)

    async def process_async(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        priority: int = 0,
    ) -> ProcessedRequest:
        """As ``process``, beside the event loop: a long prompt must not stall it.

        A thread of the loop's pool is held for tokenizing, never for compiling.
        """
        request, text = await asyncio.to_thread(
            self._read, request_id, prompt, params, priority
        )
        form = None
        output = request.sampling_params.structured_output
        if output is not None:
            form = await self._compiler_of(output).compile_async(output)
        return ProcessedRequest(request, text, form)

    def _read(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None,
        priority: int,
    ) -> tuple[GenerateRequest, str | None]:
        """Check and tokenize; the second is the prompt's text, if it came as one."""
        check_request_id(request_id)
        params = _checked(params)
        self._check_text_fields(params)
        _check_priority(priority)
        text, token_ids, salt = parse_prompt(prompt)
        if token_ids is None:
            assert text is not None
            token_ids = self._encode(text)
        if not token_ids:
            raise InvalidRequest(
                "prompt is empty: there is no token to continue from",
                field="prompt",
                value=prompt,
            )
        check_params(
            params,
            token_ids,
            vocab_size=self._vocab_size,
            max_logprobs=self._max_logprobs,
        )
        self._check_capabilities(params)
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=params,
            eos_token_ids=self._eos_token_ids,
            priority=priority,
            arrival_time_s=self._clock(),
            cache_salt=salt,
        )
        return request, text

    def _encode(self, text: str) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise InvalidRequest(
                "prompt is text, but the engine has no tokenizer: give token ids",
                field="prompt",
                value=text,
            )
        self._check_characters(text, self._tokenizer)
        return tuple(self._tokenizer.encode(text))

    def _check_characters(self, text: str, tokenizer: "Tokenizer") -> None:
        """Refuse a text that is too long by far before time is spent on it."""
        limit = self._max_model_len
        if limit is None or len(text) <= limit * SLACK:
            return
        max_characters = limit * SLACK * tokenizer.max_token_characters
        if len(text) > max_characters:
            raise RequestTooLong(
                f"the prompt has {len(text)} characters, more than {limit} tokens "
                f"(max_model_len) can hold",
                field="prompt",
                num_tokens=len(text) // tokenizer.max_token_characters,
                limit=limit,
            )

    def _check_text_fields(self, params: SamplingParams) -> None:
        """Refuse what needs text where there is no tokenizer."""
        if self._tokenizer is not None:
            return
        for name in ("stop", "bad_words"):
            value: Any = getattr(params, name)
            if value:
                raise InvalidRequest(
                    f"{name} needs text, but the engine has no tokenizer",
                    field=name,
                    value=value,
                )

    def _compiler_of(self, output: StructuredOutput) -> GrammarCompiler:
        if self._grammars is None:
            raise InvalidRequest(
                "structured_output needs text, but the engine has no tokenizer",
                field="structured_output",
                value=output.kind.value,
            )
        return self._grammars

    def _check_capabilities(self, params: SamplingParams) -> None:
        """Refuse what the executor would have to drop in silence."""
        capabilities = self._capabilities
        refused = []
        if params.prompt_logprobs is not None and not capabilities.prompt_logprobs:
            refused.append("prompt_logprobs")
        if not capabilities.returns_logits:
            refused += [
                name
                for name, plain in PLAIN_DRAW.items()
                if getattr(params, name) != plain
                and name not in capabilities.sampling_fields
            ]
        if refused:
            raise UnsupportedFeature(
                f"executor {capabilities.name} does not take {', '.join(refused)}"
            )


def _grammar_compiler(tokenizer: "Tokenizer | None") -> GrammarCompiler | None:
    """What compiles the forms of answers; without text there is none."""
    if tokenizer is None:
        return None
    return GrammarCompiler(
        tokenizer.backend, tokenizer.vocab_size, tokenizer.eos_token_ids
    )


def check_request_id(request_id: Any) -> None:
    """Refuse what is no name for a request.

    Raises:
        InvalidRequest: it is no text, empty, or too long.
    """
    if not isinstance(request_id, str) or not request_id:
        raise InvalidRequest(
            f"request_id is {shown(request_id)}, must be a text that is not empty",
            field="request_id",
            value=request_id,
        )
    if len(request_id) > MAX_REQUEST_ID_CHARACTERS:
        raise InvalidRequest(
            f"request_id has {len(request_id)} characters, at most "
            f"{MAX_REQUEST_ID_CHARACTERS}",
            field="request_id",
            value=len(request_id),
        )


def _check_priority(priority: Any) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidRequest(
            f"priority is {shown(priority)}, must be an integer",
            field="priority",
            value=priority,
        )


def _checked(params: Any) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(
            f"sampling_params is a {type(params).__name__}, must be SamplingParams",
            field="sampling_params",
            value=params,
        )
    return params
