"""The options that say how an answer is drawn and where it ends."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option

from .prompt_input import read_prompt_file

if TYPE_CHECKING:
    from hybrid import SamplingParams, StructuredOutput

_SAMPLING = "Sampling"
DEFAULT_MAX_TOKENS: Final = 512
"""A small model may never end by itself; the engine's own default is the context."""


def _sampling_option(*names: str, help: str) -> Any:  # noqa: A002 - typer's own word
    return Option(*names, help=help, rich_help_panel=_SAMPLING)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Fields of ``SamplingParams``, which checks them."""

    max_tokens: Annotated[
        int, _sampling_option("--max-tokens", help="Most tokens of an answer.")
    ] = DEFAULT_MAX_TOKENS
    min_tokens: Annotated[
        int, _sampling_option("--min-tokens", help="Tokens before it may end.")
    ] = 0
    temperature: Annotated[
        float | None,
        _sampling_option(
            "--temperature",
            "-t",
            help="0 always takes the likeliest token; the default is 0 in generate, "
            "0.7 in chat.",
        ),
    ] = None
    top_p: Annotated[
        float,
        _sampling_option("--top-p", help="Keep the likeliest tokens of this share."),
    ] = 1.0
    top_k: Annotated[
        int, _sampling_option("--top-k", help="Keep so many; 0 keeps all.")
    ] = 0
    min_p: Annotated[
        float,
        _sampling_option("--min-p", help="Drop tokens below this share of the best."),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        _sampling_option("--presence-penalty", help="Once per token in the answer."),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _sampling_option("--frequency-penalty", help="Per occurrence in the answer."),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        _sampling_option(
            "--repetition-penalty", help="Above 1: against tokens of prompt and answer."
        ),
    ] = 1.0
    seed: Annotated[
        int | None,
        _sampling_option("--seed", help="The same seed draws the same answer."),
    ] = None
    stop: Annotated[
        list[str] | None,
        _sampling_option("--stop", help="Text that ends an answer; may be repeated."),
    ] = None
    ignore_eos: Annotated[
        bool,
        _sampling_option("--ignore-eos", help="Go on past the model's own end."),
    ] = False
    structured_output: Annotated[
        str | None,
        _sampling_option(
            "--json-schema",
            help="File (or -) of a JSON Schema that an answer keeps to.",
        ),
    ] = None

    def params(self, *, temperature: float, n: int = 1) -> "SamplingParams":
        """Build what the engine takes.

        Args:
            temperature: used where the user named none.
            n: answers to one prompt.

        Raises:
            InvalidRequest: a value is outside its range; names the field.
            OSError: the file of a schema cannot be read.
        """
        from hybrid import SamplingParams  # noqa: PLC0415 - only when a command runs

        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        if values["temperature"] is None:
            values["temperature"] = temperature
        values["structured_output"] = _read_schema(self.structured_output)
        return SamplingParams(**{**values, "stop": tuple(self.stop or ()), "n": n})


def _read_schema(path: str | None) -> "StructuredOutput | None":
    from hybrid import GrammarKind, StructuredOutput  # noqa: PLC0415 - as above

    if path is None:
        return None
    text = read_prompt_file(path)
    return StructuredOutput(GrammarKind.JSON_SCHEMA, text)
