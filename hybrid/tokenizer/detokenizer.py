"""Token ids to text, one token at a time, never taking a character back.

Why not ``tokenizers.decoders.DecodeStream`` (0.23): it raises where a decoder with byte
fallback changes its mind about bytes already seen, has no way to get the text of an
answer that ends within a character, and goes over all pending tokens again and again
while the answer is no valid UTF-8.
"""

from collections.abc import Sequence
from typing import Final, Protocol

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MAX_UTF8_BYTES: Final = 4
_MAX_HELD: Final = _MAX_UTF8_BYTES - 1
"""Replacement characters at the end that may yet become one character: decoders with
byte fallback write one per byte, at most three of a character that lacks a byte."""
_CONTEXT_TOKENS: Final = 6
_MAX_PENDING: Final = 24
_KEPT_PENDING: Final = 12
"""At least a byte each, so more than any three characters at the end take."""


class Decoder(Protocol):
    """What turns ids into text; a model's tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of ``token_ids``; U+FFFD for bytes that are no character."""
        ...


class IncrementalDetokenizer:
    """The text of one growing answer.

    The text is what the tokens add to the text of the prompt: decode(prompt + answer)
    without decode(prompt), so that a first word keeps its space. It is made token by
    token, so it does not depend on how many come at once.

    A character is given out when it is whole. Bytes that can no longer become one are
    given out as U+FFFD, the characters around them as they are. An answer that ends
    within a character ends with one U+FFFD, given out by ``finish``. A character begun
    by the prompt is shown by the answer that completes it.

    Work per token is bounded: only the last few tokens are decoded again. Hence one
    limit of decoders with byte fallback: right after other bytes, a U+2581 spelled in
    bytes (their space) may be missing, and after a U+FFFD spelled in bytes (a character
    like any other there) an unfinished character may show as U+FFFD too early.
    """

    # The window that is decoded: tokens whose text is out, then pending ones.
    #
    #     context                 | pending
    #     text is out, whole      | text ends within a character
    #     characters; keeps spaces|  [ given out | held ]

    def __init__(
        self,
        decoder: Decoder,
        *,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        """Start after the prompt.

        Args:
            decoder: the model's.
            prompt_token_ids: what the answer continues; only its end is looked at.
            skip_special_tokens: leave special tokens out of the text.
        """
        self._decoder: Final = decoder
        self._skip_special_tokens: Final = skip_special_tokens
        self._context: list[int] = []
        self._context_text = ""
        self._set_context(list(prompt_token_ids), _CONTEXT_TOKENS)
        self._pending: list[int] = []
        self._pending_text = ""
        self._num_given = 0
        """Characters of the pending text that are out."""
        self._max_pending = _MAX_PENDING
        self._take_over_split_character()
        self._prompt_text = self._pending_text
        """What the prompt itself shows of a character that it leaves unfinished."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens; returns the text that is certain now and was not before."""
        if len(token_ids) == 1:
            return self._push_one(token_ids[0])
        return "".join(map(self._push_one, token_ids))

    def finish(self) -> str:
        """End the answer; returns the held rest, an unfinished character as U+FFFD."""
        text = self._pending_text
        start = self._start_of_new(text)
        stable = len(text) - self._num_held(text)
        self._keep_as_context([])
        is_unfinished = max(start, stable) < len(text)
        return text[start:stable] + (REPLACEMENT if is_unfinished else "")

    def _push_one(self, token_id: int) -> str:
        if not self._pending and (text := self._whole_text(token_id)):
            return text
        text = self._text_of([*self._pending, token_id])
        if text == self._pending_text and self._is_invisible(token_id):
            return ""
        # Only a U+FFFD that is a character itself, spelled in bytes, can take the place
        # of more of them.
        is_whole = not text.endswith(REPLACEMENT) or len(text) < len(self._pending_text)
        self._pending.append(token_id)
        self._pending_text = text
        if is_whole:
            new_text = text[self._start_of_new(text) :]
            if text:
                self._keep_as_context(self._pending)
            return new_text
        whole = self._whole_end()
        if whole:
            end = self._pending[-whole:]
            text = self._text_of(self._pending[:-whole]) + self._text_of(end)
            new_text = text[self._start_of_new(text) :]
            self._keep_as_context(end)
            return new_text
        stable = max(len(text) - self._num_held(text), self._num_given)
        new_text = text[self._start_of_new(text) : stable]
        self._num_given = stable
        if len(self._pending) > self._max_pending:
            self._forget_broken_start()
        return new_text

    def _whole_text(self, token_id: int) -> str:
        """The usual case: a token that shows whole characters after whole characters.

        Returns:
            Its text, the token being the context now; empty, with nothing changed, in
            every other case.
        """
        text = self._decode([*self._context, token_id])
        if text.endswith(REPLACEMENT) or not text.startswith(self._context_text):
            return ""
        new_text = text[len(self._context_text) :]
        if new_text and (own_text := self._decode([token_id])):
            self._context, self._context_text = [token_id], own_text
            return new_text
        return ""

    def _start_of_new(self, text: str) -> int:
        """Where in the pending text begins what is neither out nor the prompt's."""
        is_prompts = text.startswith(self._prompt_text)
        return max(self._num_given, len(self._prompt_text) if is_prompts else 0)

    def _whole_end(self) -> int:
        """How many of the last pending tokens are whole characters by themselves.

        UTF-8 shows in each byte whether a character starts there, so the end of an
        unfinished character is never whole: what is before a whole end is broken. Only
        decoders with byte fallback need this: one bad byte spoils all beside it.
        """
        for num_tokens in range(1, min(len(self._pending), _MAX_UTF8_BYTES + 1)):
            text = self._text_of(self._pending[-num_tokens:])
            if text and not text.endswith(REPLACEMENT):
                return num_tokens
        return 0

    def _forget_broken_start(self) -> None:
        """Shorten a long pending run, so that garbage costs no more than text."""
        kept = self._pending[-_KEPT_PENDING:]
        text = self._text_of(kept)
        num_held = len(self._pending_text) - self._num_given
        compared = num_held + 1
        if text[-compared:] == self._pending_text[-compared:]:
            self._pending, self._pending_text = kept, text
            self._num_given = len(text) - num_held
            self._prompt_text = ""
        else:
            self._max_pending *= 2

    def _keep_as_context(self, tokens: list[int]) -> None:
        """All of ``tokens`` is out: what follows is read after them."""
        self._context_text = self._decode(tokens)
        if self._context_text:
            self._context = tokens
        else:
            self._set_context([*self._context, *tokens], len(tokens) + 1)
        self._pending, self._pending_text = [], ""
        self._num_given = 0
        self._prompt_text = ""
        self._max_pending = _MAX_PENDING

    def _text_of(self, tokens: list[int]) -> str:
        """What ``tokens`` add to the text of the context."""
        text = self._decode([*self._context, *tokens])
        if text.endswith(REPLACEMENT) and self._context_text.endswith(REPLACEMENT):
            # Whether the context's last character is among the broken ones shows not.
            return self._decode(tokens)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # The context's last bytes and these were read as one broken run. What is out is
        # out: read these after the part of the context that they do not spoil.
        for length in range(len(self._context) - 1, 0, -1):
            before = self._decode(self._context[:length])
            text = self._decode([*self._context[:length], *tokens])
            if text.startswith(before):
                return text[len(before) :]
        return self._decode(tokens)

    def _is_invisible(self, token_id: int) -> bool:
        # Twice, because decoders strip one space from the start of a text.
        return not self._decode([token_id, token_id])

    def _set_context(self, tokens: list[int], num_tokens: int) -> None:
        """Keep the last of ``tokens`` as context, ``num_tokens`` or more.

        It shows some text, so that no space after it is stripped as a first one, and it
        starts at a whole character, for a part of one would spoil the bytes after it.
        """
        while True:
            self._context = tokens[-num_tokens:]
            self._context_text = text = self._decode(self._context)
            is_good = text and not text.startswith(REPLACEMENT)
            if is_good or num_tokens >= len(tokens):
                return
            num_tokens += min(num_tokens, len(tokens) - num_tokens)

    def _take_over_split_character(self) -> None:
        if not self._context_text.endswith(REPLACEMENT):
            return
        for num_tokens in range(1, min(len(self._context), _MAX_HELD) + 1):
            before = self._context[:-num_tokens]
            text = self._decode(before)
            if len(text) > len(self._context_text):
                return  # a U+FFFD that is a character itself, spelled in bytes
            if not text.endswith(REPLACEMENT):
                self._pending = self._context[-num_tokens:]
                self._context, self._context_text = before, text
                self._pending_text = self._text_of(self._pending)
                return

    def _num_held(self, text: str) -> int:
        """Replacement characters at the end of ``text`` that may yet become others.

        At the start of a text one more: a stripped first space, as a byte, turns into
        U+FFFD too once a broken byte follows.
        """
        limit = _MAX_HELD if self._context_text else _MAX_HELD + 1
        return min(len(text) - len(text.rstrip(REPLACEMENT)), limit)

    def _decode(self, token_ids: list[int]) -> str:
        return self._decoder.decode(
            token_ids, skip_special_tokens=self._skip_special_tokens
        )
