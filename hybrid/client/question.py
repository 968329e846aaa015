"""What a client asks: one prompt, as ids or as what a tokenizer makes ids of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid.prompt import Prompt, parse_prompt
from hybrid.scheduler import SamplingParams, UnsupportedFeature

from .sampling_message import sampling_message

if TYPE_CHECKING:
    # Text is an extra: without it ids go in and out.
    from hybrid.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""Of a conversation, OpenAI style."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request; exactly one of ``token_ids`` and ``encode`` is set."""

    params: SamplingParams
    request_id: str
    stream: bool
    token_ids: tuple[int, ...] | None = None
    encode: "Callable[[Tokenizer], Sequence[int]] | None" = None
    """Makes the ids, where the prompt is text or messages."""

    @property
    def wants_tokenizer(self) -> bool:
        """Whether it has a use for one: text goes in, or comes out."""
        return self.encode is not None or self.params.detokenize

    def encoded(self, tokenizer: "Tokenizer | None") -> tuple[int, ...]:
        """The prompt's ids.

        Raises:
            InvalidRequest: the text or the messages make none.
        """
        if self.encode is None:
            assert self.token_ids is not None
            return self.token_ids
        assert tokenizer is not None, "text is encoded with a tokenizer alone"
        return tuple(self.encode(tokenizer))

    def message(self, token_ids: Sequence[int]) -> Any:
        """Make a ``GenerateRequest``.

        Raises:
            InvalidRequest: a value is outside the protocol's range.
            UnsupportedFeature: a field is set that the protocol lacks.
        """
        return pb.GenerateRequest(
            request_id=self.request_id,
            tokenized=pb.TokenizedInput(input_ids=token_ids),
            sampling_params=sampling_message(self.params),
            stream=self.stream,
        )


def prompt_question(
    prompt: Prompt,
    params: SamplingParams | None,
    *,
    request_id: str | None,
    stream: bool,
) -> Question:
    """Ask for a prompt to be continued.

    Raises:
        InvalidRequest: it is no prompt.
        UnsupportedFeature: it has a cache salt, for which the protocol has no field.
    """
    text, token_ids, salt = parse_prompt(prompt)
    if salt is not None:
        raise UnsupportedFeature(
            "cache_salt cannot be sent: the protocol has no field for it"
        )
    return Question(
        params=params or SamplingParams(),
        request_id=request_id or _new_id(),
        stream=stream,
        token_ids=token_ids,
        encode=None if text is None else lambda tokenizer: tokenizer.encode(text),
    )


def messages_question(
    messages: Sequence[Message],
    params: SamplingParams | None,
    template_variables: Mapping[str, Any],
    *,
    request_id: str | None,
    stream: bool,
) -> Question:
    """Ask for a conversation to be answered."""
    return Question(
        params=params or SamplingParams(),
        request_id=request_id or _new_id(),
        stream=stream,
        encode=lambda tokenizer: tokenizer.apply_chat_template(
            messages, **template_variables
        ),
    )


def _new_id() -> str:
    return f"hybrid-{uuid4().hex}"
