"""From the messages of one answer to parts of it, with their text.

The server stops at stop strings by itself and sends ids; the text is made here, by the
rules by which the engine makes it.

    chunk [5]  chunk [8]  chunk [13]  complete [13], stop
    "He"       "llo"      -           ""           13 ends the answer: it has no text
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from hybrid.scheduler import FinishReason, SamplingParams
from hybrid.scheduler.shown_value import shown
from hybrid.tokenizer.detokenizer import IncrementalDetokenizer
from hybrid.tokenizer.output_text import OutputText

from .answer_part import AnswerPart, TokenLogprob
from .rpc_failed import RpcFailed

if TYPE_CHECKING:
    # Text is an extra: without it ids go in and out.
    from hybrid.tokenizer.tokenizer import Tokenizer

_UNPAIRED: Final = "its log-probabilities are not one to a token"


@dataclass(slots=True)
class _Sample:
    """One sample as its messages come."""

    text: OutputText | None
    held: tuple[int, ...] = ()
    """An id that ends the answer if nothing follows: whether it has text shows then."""
    has_ended: bool = False


class AnswerReader:
    """Reads ``GenerateResponse`` after ``GenerateResponse``."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: tuple[int, ...],
        tokenizer: "Tokenizer | None",
        *,
        stream: bool,
    ) -> None:
        """Start before the first message.

        Args:
            params: those of the request.
            prompt_token_ids: what the answer continues.
            tokenizer: the server's; ``None``: no text is made.
            stream: whether chunks were asked for.
        """
        self._params: Final = params
        self._stream: Final = stream
        end_ids = set(params.stop_token_ids)
        if tokenizer is not None:
            end_ids |= tokenizer.eos_token_ids
        self._end_ids: Final = frozenset(end_ids)
        self._samples: Final = [
            _Sample(_text(params, prompt_token_ids, tokenizer)) for _ in range(params.n)
        ]

    def take(self, response: Any) -> AnswerPart:
        """Read one message.

        Raises:
            RpcFailed: the server breaks the protocol.
        """
        kind = response.WhichOneof("response")
        if kind is None or (kind == "chunk" and not self._stream):
            raise _broken("it sent a message that was not asked for")
        message = getattr(response, kind)
        if message.index >= len(self._samples):
            raise _broken(f"it answered for sample {message.index}")
        sample = self._samples[message.index]
        if sample.has_ended:
            raise _broken(f"it went on after the end of sample {message.index}")
        if kind == "chunk":
            return self._take_chunk(sample, message)
        return self._take_complete(sample, message)

    def check_end(self) -> None:
        """Check that every sample has ended.

        Raises:
            RpcFailed: one has not.
        """
        if not all(sample.has_ended for sample in self._samples):
            raise _broken("it ended the call before the answer")

    def _take_chunk(self, sample: _Sample, chunk: Any) -> AnswerPart:
        token_ids = tuple(chunk.token_ids)
        text = ""
        if sample.text is not None:
            known = sample.held + token_ids
            is_end = bool(known) and known[-1] in self._end_ids
            sample.held = known[-1:] if is_end else ()
            sample.text.append(known[:-1] if is_end else known, is_last=False)
            text = sample.text.new_text
        return self._part(chunk, token_ids, text)

    def _take_complete(self, sample: _Sample, complete: Any) -> AnswerPart:
        # In a stream it repeats what the last chunk said.
        token_ids = () if self._stream else tuple(complete.output_ids)
        reason = _finish_reason(complete.finish_reason)
        matched = complete.WhichOneof("matched_stop")
        stop_reason = None if matched is None else getattr(complete, matched)
        sample.has_ended = True
        text = ""
        if sample.text is not None:
            is_token = reason is FinishReason.STOP and matched != "matched_stop_str"
            known = sample.held + token_ids
            sample.text.append(known, is_last=True, ends_at_stop_token=is_token)
            text = sample.text.new_text
        part = self._part(complete, token_ids, text)
        return replace(part, finish_reason=reason, stop_reason=stop_reason)

    def _part(self, message: Any, token_ids: tuple[int, ...], text: str) -> AnswerPart:
        logprobs = prompt_logprobs = None
        if self._params.logprobs is not None:
            positions = _positions(message.output_logprobs) if token_ids else ()
            logprobs = tuple(entry for entry in positions if entry is not None)
            if len(logprobs) != len(token_ids):
                raise _broken(_UNPAIRED)
        if message.HasField("input_logprobs"):
            prompt_logprobs = tuple(_positions(message.input_logprobs))
        return AnswerPart(
            index=message.index,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=None,
            stop_reason=None,
            num_prompt_tokens=message.prompt_tokens,
            num_cached_tokens=message.cached_tokens,
            prompt_logprobs=prompt_logprobs,
        )


def _text(
    params: SamplingParams,
    prompt_token_ids: tuple[int, ...],
    tokenizer: "Tokenizer | None",
) -> OutputText | None:
    if tokenizer is None or not params.detokenize:
        return None
    detokenizer = IncrementalDetokenizer(
        tokenizer,
        prompt_token_ids=prompt_token_ids,
        skip_special_tokens=params.skip_special_tokens,
    )
    return OutputText(params, detokenizer)


def _positions(message: Any) -> Iterator[TokenLogprob | None]:
    """Read an ``OutputLogProbs`` or ``InputLogProbs``; nothing predicts a first id."""
    token_ids, entries = message.token_ids, message.token_logprobs
    tops = message.top_logprobs or [None] * len(token_ids)
    if not len(token_ids) == len(entries) == len(tops):
        raise _broken(_UNPAIRED)
    for token_id, entry, top in zip(token_ids, entries, tops, strict=True):
        if isinstance(entry, float):
            yield TokenLogprob(token_id, entry, _alternatives(top))
        elif entry.HasField("value"):
            yield TokenLogprob(token_id, entry.value, _alternatives(top))
        else:
            yield None


def _alternatives(top: Any) -> dict[int, float]:
    if top is None:
        return {}
    if len(top.token_ids) != len(top.values):
        raise _broken(_UNPAIRED)
    return dict(zip(top.token_ids, top.values, strict=True))


def _finish_reason(name: str) -> FinishReason:
    try:
        return FinishReason(name)
    except ValueError:
        raise _broken(f"it gave the finish reason {shown(name)}") from None


def _broken(what: str) -> RpcFailed:
    return RpcFailed("OK", f"the server breaks the protocol: {what}")
