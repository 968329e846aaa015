"""Compiles the forms of answers over one tokenizer's vocabulary, and keeps some.

Any thread may call it. What a request describes is the caller's: the text is bounded,
llguidance counts its own steps, and what recurses does so on a stack made for it.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from hybrid.scheduler.errors import InvalidRequest, UnsupportedFeature
from hybrid.scheduler.structured_output import StructuredOutput

from .compile_queue import CompileQueue
from .form_limits import (
    MAX_CACHED,
    MAX_CACHED_CHARACTERS,
    MAX_LEXER_STATES,
    MAX_ROW_ITEMS,
    MAX_STEP_FUEL,
    check_size,
)
from .grammar_source import grammar_source
from .grammar_state import GrammarState

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from tokenizers import Tokenizer

MAX_REASON_CHARACTERS: Final = 300


class GrammarCompiler:
    """Compiles each form once, as long as it is kept."""

    def __init__(
        self, tokenizer: "Tokenizer", num_ids: int, eos_token_ids: Collection[int]
    ) -> None:
        """Compile nothing yet.

        Args:
            tokenizer: byte-level, or with a fallback to bytes.
            num_ids: its highest id + 1.
            eos_token_ids: the model's ends; its files may name some that are no ids.
        """
        self._tokenizer: Final = tokenizer
        self._num_ids: Final = num_ids
        self._eos_token_ids: Final = sorted(i for i in eos_token_ids if i < num_ids)
        self._lock: Final = threading.Lock()
        self._vocabulary_lock: Final = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._kept: Final[OrderedDict[StructuredOutput, GrammarState]] = OrderedDict()
        self._queue: Final = CompileQueue(self._compile_and_keep)

    @property
    def num_cached(self) -> int:
        """Forms that are kept."""
        return len(self._kept)

    def compile(self, output: StructuredOutput) -> GrammarState:
        """Make the beginning of an answer; takes up to some seconds for a new form.

        Returns:
            The caller's own: nothing is compiled for it again.

        Raises:
            InvalidRequest: it is malformed, too long, asks for what cannot be promised
                or takes too much work; or llguidance is not installed.
            UnsupportedFeature: nothing is known of this tokenizer's bytes.
            Overloaded: too many other forms are to be compiled first.
        """
        state = self._find(output)
        if state is None:
            with _refusal_of(output):
                state = self._queue.run(output)
        return state.copy()

    async def compile_async(self, output: StructuredOutput) -> GrammarState:
        """As ``compile``, holding neither the event loop nor a thread of its pool."""
        state = self._find(output)
        if state is None:
            with _refusal_of(output):
                state = await self._queue.run_async(output)
        return state.copy()

    def _find(self, output: StructuredOutput) -> GrammarState | None:
        check_size(output)
        with self._lock:
            state = self._kept.get(output)
            if state is not None:
                self._kept.move_to_end(output)
            return state

    def _compile_and_keep(self, output: StructuredOutput) -> GrammarState:
        # Its last job may have ended since the caller looked.
        state = self._find(output)
        if state is None:
            state = GrammarState(self._compile(output), self._textual_eos())
            with self._lock:
                self._kept[output] = state
                while self._is_full():
                    self._kept.popitem(last=False)
        return state

    def _is_full(self) -> bool:
        sizes = (output.num_characters for output in self._kept)
        return len(self._kept) > MAX_CACHED or sum(sizes) > MAX_CACHED_CHARACTERS

    def _compile(self, output: StructuredOutput) -> "LLMatcher":
        vocabulary = self._loaded_vocabulary()
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 - an extra

        limits = LLParserLimits(
            max_items_in_row=MAX_ROW_ITEMS,
            step_lexer_fuel=MAX_STEP_FUEL,
            max_lexer_states=MAX_LEXER_STATES,
            verbose_errors=False,
        )
        source = grammar_source(output, self._special_tokens(vocabulary))
        matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
        # The first mask is the dear one, and meets limits that compiling does not.
        matcher.compute_logit_bias()
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def _textual_eos(self) -> "np.typing.NDArray[np.intp]":
        vocabulary = self._loaded_vocabulary()
        eos = self._eos_token_ids
        textual = [i for i in eos if not vocabulary.is_special_token(i)]
        return np.array(textual, np.intp)

    def _special_tokens(self, vocabulary: "LLTokenizer") -> dict[str, int]:
        """What no text spells: for llguidance more than what the tokenizer skips."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {
            token.content: token_id
            for token_id, token in added.items()
            if vocabulary.is_special_token(token_id)
        }

    def _loaded_vocabulary(self) -> "LLTokenizer":
        """The tokenizer as llguidance has it; made once, in about a second."""
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary()
            return self._vocabulary

    def _load_vocabulary(self) -> "LLTokenizer":
        try:
            from llguidance import LLTokenizer  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise InvalidRequest(
                f"structured_output needs {error.name}, which is not installed: pip "
                "install 'hybrid-llm-engine[grpc]'",
                field="structured_output",
            ) from error
        if not self._eos_token_ids:
            raise UnsupportedFeature(
                "structured_output needs a token that ends an answer, and this model "
                "names none"
            )
        try:
            return LLTokenizer(
                self._tokenizer.to_str(),
                n_vocab=self._num_ids,
                eos_token=self._eos_token_ids,
            )
        except ValueError as error:
            raise UnsupportedFeature(
                f"structured_output cannot be had with this model's tokenizer: {error}"
            ) from error


@contextmanager
def _refusal_of(output: StructuredOutput) -> Iterator[None]:
    """Turn what compiling a form raises into a refusal of it."""
    try:
        yield
    except (ValueError, RecursionError, TimeoutError) as error:
        raise _refused(output, str(error)) from error


def _refused(output: StructuredOutput, reason: str) -> InvalidRequest:
    short = " ".join(reason.split())
    if len(short) > MAX_REASON_CHARACTERS:
        short = short[:MAX_REASON_CHARACTERS] + "..."
    return InvalidRequest(
        f"structured_output ({output.kind.value}) cannot be used: {short}",
        field="structured_output",
        value=output.kind.value,
    )
