"""Compiles the forms of answers over one tokenizer's vocabulary, and keeps some.

Any thread may call it. What a request describes is the caller's: the text is bounded,
llguidance counts its own steps, and what recurses does so on a stack made for it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import numpy as np

from hybrid.scheduler.errors import InvalidRequest, UnsupportedFeature
from hybrid.scheduler.structured_output import StructuredOutput

from .grammar_source import grammar_source
from .grammar_state import GrammarState

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from tokenizers import Tokenizer

MAX_CACHED: Final = 64
MAX_CACHED_CHARACTERS: Final = 2**20
"""Of all kept descriptions together: compiled, each takes some hundred times that."""
STACK_BYTES: Final = 2**29
"""Of address space; what is not used is never allocated. Rules that lead to each other,
as many as a description may have, were seen to take 130 MiB, and a stack that overflows
ends the process."""
COMPILE_TIMEOUT_S: Final = 30.0
"""The longest that was seen took three. The thread cannot be stopped, only left."""
MAX_REASON_CHARACTERS: Final = 300
_MAX_STEP_FUEL: Final = 50_000
"""Of one mask, a quarter of the usual: it is made between two steps of everyone. The
dearest that was seen took 25 ms, those of usual forms some microseconds."""
_MAX_ROW_ITEMS: Final = 20_000
"""Ten times the usual, which an object of 500 optional properties exceeds."""
_MAX_LEXER_STATES: Final = 50_000
"""About 2 kB each, for the longest answer."""
_STACK_SIZE_LOCK: Final = threading.Lock()
"""Of the module, as the size of the next thread's stack is the process's."""


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
        self._matchers: Final[OrderedDict[StructuredOutput, LLMatcher]] = OrderedDict()

    @property
    def num_cached(self) -> int:
        """Forms that are kept."""
        return len(self._matchers)

    def compile(self, output: StructuredOutput) -> None:
        """Make sure that the form can be followed; takes up to some seconds.

        Raises:
            InvalidRequest: it is malformed, asks for what cannot be promised or takes
                too much work; or llguidance is not installed.
            UnsupportedFeature: nothing is known of this tokenizer's bytes.
        """
        self._matcher(output)

    def start(self, output: StructuredOutput) -> GrammarState:
        """The beginning of an answer; quick where ``compile`` has just been called.

        Raises:
            InvalidRequest: see ``compile``.
            UnsupportedFeature: see ``compile``.
        """
        matcher = self._matcher(output).deep_copy()
        return GrammarState(matcher, self._textual_eos())

    def _matcher(self, output: StructuredOutput) -> "LLMatcher":
        with self._lock:
            matcher = self._matchers.get(output)
            if matcher is not None:
                self._matchers.move_to_end(output)
                return matcher
        # Outside the lock: a form that is kept need not wait for one that is not.
        matcher = self._compile(output)
        with self._lock:
            self._matchers[output] = matcher
            while self._is_full():
                self._matchers.popitem(last=False)
        return matcher

    def _is_full(self) -> bool:
        sizes = (output.num_characters for output in self._matchers)
        return len(self._matchers) > MAX_CACHED or sum(sizes) > MAX_CACHED_CHARACTERS

    def _compile(self, output: StructuredOutput) -> "LLMatcher":
        vocabulary = self._loaded_vocabulary()
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 - an extra

        limits = LLParserLimits(
            max_items_in_row=_MAX_ROW_ITEMS,
            step_lexer_fuel=_MAX_STEP_FUEL,
            max_lexer_states=_MAX_LEXER_STATES,
            verbose_errors=False,
        )
        special = self._special_tokens(vocabulary)

        def work() -> LLMatcher:
            source = grammar_source(output, special)
            matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
            # The first mask is the dear one, and meets limits that compiling does not.
            matcher.compute_logit_bias()
            return matcher

        try:
            matcher = _run_on_deep_stack(work)
        except (ValueError, RecursionError, TimeoutError) as error:
            raise _refused(output, str(error)) from error
        if matcher.is_error():
            raise _refused(output, matcher.get_error())
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


def _run_on_deep_stack(work: "Callable[[], LLMatcher]") -> "LLMatcher":
    """Run ``work`` in a thread of its own; its result, or its error raised."""
    done: list[LLMatcher] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            failed.append(error)

    thread = threading.Thread(target=run, name="hybrid-grammar", daemon=True)
    with _STACK_SIZE_LOCK:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join(COMPILE_TIMEOUT_S)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"it takes more than {COMPILE_TIMEOUT_S:g} s to compile")
    return done[0]


def _refused(output: StructuredOutput, reason: str) -> InvalidRequest:
    short = " ".join(reason.split())
    if len(short) > MAX_REASON_CHARACTERS:
        short = short[:MAX_REASON_CHARACTERS] + "..."
    return InvalidRequest(
        f"structured_output ({output.kind.value}) cannot be used: {short}",
        field="structured_output",
        value=output.kind.value,
    )
