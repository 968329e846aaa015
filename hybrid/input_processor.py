"""From what a caller gives to what the scheduler takes: checked, in token ids.

Holds no state of a request: calls from several threads are safe.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from hybrid.backends.interface import Capabilities
from hybrid.scheduler import GenerateRequest, InvalidRequest, UnsupportedFeature
from hybrid.scheduler.sampling_params import SamplingParams

from .prompt import Prompt, parse_prompt
from .sampler.validation import check_params
from .tokenizer.tokenizer import Tokenizer


class InputProcessor:
    """Tokenizes prompts and refuses what the model or the executor cannot do."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        capabilities: Capabilities,
        *,
        vocab_size: int,
        max_logprobs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer: Final = tokenizer
        self._capabilities: Final = capabilities
        self._vocab_size: Final = vocab_size
        self._max_logprobs: Final = max_logprobs
        self._clock: Final = clock

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        priority: int = 0,
    ) -> tuple[GenerateRequest, str | None]:
        """Make a request, and say what its prompt's text is, if it came as text.

        Raises:
            InvalidRequest: names the field, its value and the limit.
            UnsupportedFeature: the executor cannot do it.
        """
        params = self._with_output_form(_checked(params))
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
        eos = frozenset() if self._tokenizer is None else self._tokenizer.eos_token_ids
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=params,
            eos_token_ids=eos,
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
        return tuple(self._tokenizer.encode(text))

    def _with_output_form(self, params: SamplingParams) -> SamplingParams:
        """Refuse what needs text where there is no tokenizer."""
        if self._tokenizer is None:
            for name in ("stop", "bad_words"):
                value: Any = getattr(params, name)
                if value:
                    raise InvalidRequest(
                        f"{name} needs text, but the engine has no tokenizer",
                        field=name,
                        value=value,
                    )
        return params

    def _check_capabilities(self, params: SamplingParams) -> None:
        capabilities = self._capabilities
        wants = {
            "logprobs": params.logprobs is not None and not capabilities.returns_logits,
            "prompt_logprobs": params.prompt_logprobs is not None
            and not (capabilities.prompt_logprobs and capabilities.returns_logits),
        }
        for name, refused in wants.items():
            if refused:
                raise UnsupportedFeature(
                    f"executor {capabilities.name} gives no {name}"
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
