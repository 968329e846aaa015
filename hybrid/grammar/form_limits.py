"""How much a form may be, and how much work may be spent on it.

What a request describes is the caller's, and so is the work: each of these can be met.
"""

from typing import Final

from hybrid.scheduler.errors import InvalidRequest
from hybrid.scheduler.structured_output import GrammarKind, StructuredOutput

MAX_FORM_CHARACTERS: Final = 2**17
"""Of a schema, a pattern, tags, or all choices together. Bounds the time, the memory
and the depth of recursion of compiling them."""
MAX_GRAMMAR_CHARACTERS: Final = 2**15
"""Of a grammar, whose rules take time by the square of their number."""
STACK_BYTES: Final = 2**29
"""Of address space; what is not used is never allocated. Rules that lead to each other,
as many as a description may have, were seen to take 130 MiB, and a stack that overflows
ends the process."""
MAX_THREADS: Final = 2
"""That compile; llguidance leaves the interpreter to the others meanwhile."""
MAX_WAITING: Final = 256
"""Forms that nobody compiles yet."""
MAX_WAITING_CHARACTERS: Final = 2**20
"""Of these forms together."""
COMPILE_TIMEOUT_S: Final = 30.0
"""From the asking on. The longest that was seen took three. A thread that compiles
cannot be stopped, only left."""
MAX_CACHED: Final = 64
MAX_CACHED_CHARACTERS: Final = 2**20
"""Of all kept descriptions together: compiled, each takes some hundred times that."""
MAX_STEP_FUEL: Final = 50_000
"""Of one mask, a quarter of the usual: it is made between two steps of everyone. The
dearest that was seen took 25 ms, those of usual forms some microseconds."""
MAX_ROW_ITEMS: Final = 20_000
"""Ten times the usual, which an object of 500 optional properties exceeds."""
MAX_LEXER_STATES: Final = 50_000
"""About 2 kB each, for the longest answer."""


def check_size(output: StructuredOutput) -> None:
    """Refuse a form that is too long to be compiled.

    Raises:
        InvalidRequest: names kind, size and limit.
    """
    is_grammar = output.kind is GrammarKind.GRAMMAR
    limit = MAX_GRAMMAR_CHARACTERS if is_grammar else MAX_FORM_CHARACTERS
    if output.num_characters > limit:
        raise InvalidRequest(
            f"structured_output ({output.kind.value}) has {output.num_characters} "
            f"characters, at most {limit}",
            field="structured_output",
            value=output.num_characters,
        )
