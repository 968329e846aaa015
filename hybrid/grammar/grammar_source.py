"""From the form of an answer to the text that llguidance compiles."""

from collections.abc import Mapping

from hybrid.scheduler.structured_output import GrammarKind, StructuredOutput

from .json_whitespace import WHITESPACE
from .lark_literal import lark_literal
from .structural_tag import structural_tag_to_lark


def grammar_source(output: StructuredOutput, special_tokens: Mapping[str, int]) -> str:
    """Describe ``output`` to llguidance.

    Args:
        output: what is wanted.
        special_tokens: the tokenizer's, by their text: no text spells these.

    Raises:
        ValueError: it is malformed; llguidance finds out the rest.
        RecursionError: it is nested too deeply.
    """
    from llguidance import LLMatcher, grammar_from  # noqa: PLC0415 - an extra

    text = output.text
    match output.kind:
        case GrammarKind.JSON_SCHEMA:
            return _json_source(text)
        case GrammarKind.JSON_OBJECT:
            return _json_source('{"type":"object"}')
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(text)
        case GrammarKind.GRAMMAR:
            return grammar_from("grammar", text)
        case GrammarKind.CHOICE:
            literals = map(lark_literal, output.choices)
            return LLMatcher.grammar_from_lark("start: " + " | ".join(literals))
        case GrammarKind.STRUCTURAL_TAG:
            return structural_tag_to_lark(text, special_tokens)


def _json_source(schema: str) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415 - an extra

    if '"x-guidance"' in schema:
        # It speaks to llguidance itself, and has the say on blanks.
        return LLMatcher.grammar_from_json_schema(schema)
    return LLMatcher.grammar_from_json_schema(
        schema, defaults={"whitespace_pattern": WHITESPACE}
    )
