"""``hybrid generate``: one prompt, one streamed answer."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

from .answer import Answer, follow, write_now
from .engine_options import EngineOptions, open_engine
from .interrupt import InterruptFlag
from .option_groups import expand_option_groups
from .prompt_input import check_argument, read_prompt_file
from .sampling_options import SamplingOptions
from .verbosity import Verbose, start_logging

if TYPE_CHECKING:
    from hybrid import LLM, RequestOutput, SamplingParams


@expand_option_groups
def generate(  # noqa: PLR0913 - one per option of the command line
    *,
    prompt: Annotated[
        str | None,
        Argument(help="Text to continue; - reads standard input.", show_default=False),
    ] = None,
    chat: Annotated[
        str | None,
        Option("--chat", "-c", help="A message to answer, by the model's template."),
    ] = None,
    system: Annotated[
        str | None, Option("--system", "-s", help="What the model is told before it.")
    ] = None,
    prompt_file: Annotated[
        str | None,
        Option("--prompt-file", "-f", help="Text to continue, from a file or -."),
    ] = None,
    n: Annotated[
        int, Option("--n", help="Answers to draw; above 1 they come when all are done.")
    ] = 1,
    as_json: Annotated[
        bool, Option("--json", help="One JSON object at the end, no stream.")
    ] = False,
    engine: EngineOptions,
    sampling: SamplingOptions,
    verbose: Verbose = 0,
) -> None:
    """Continue a text, or answer a message with --chat; streams to stdout."""
    start_logging(verbose)
    text = _text_to_continue(prompt, prompt_file, chat, system)
    params = sampling.params(temperature=0.0, n=n)
    streams = not as_json and n == 1
    with open_engine(engine) as llm:
        with InterruptFlag() as interrupt:
            outputs = _start(llm, text, chat, system, params)
            answer = follow(outputs, write_now if streams else None, interrupt.is_set)
    if answer is not None:
        _finish(answer, engine.model, as_json=as_json, streams=streams)
        if verbose:
            sys.stderr.write(f"{answer.stats_line()}\n")
    if interrupt.is_set():
        raise KeyboardInterrupt


def _text_to_continue(
    prompt: str | None, prompt_file: str | None, chat: str | None, system: str | None
) -> str | None:
    """Return the text of the one source that was given; ``None`` for a chat message."""
    given = [value for value in (prompt, prompt_file, chat) if value is not None]
    if len(given) != 1:
        raise BadParameter("give exactly one of PROMPT, --prompt-file and --chat")
    if system is not None and chat is None:
        raise BadParameter("--system needs --chat")
    if chat is not None:
        check_argument("system", system or "")
        check_argument("chat", chat)
        return None
    if prompt_file is not None or prompt == "-":
        return read_prompt_file(prompt_file or "-")
    return check_argument("prompt", prompt or "")


def _start(
    llm: "LLM",
    text: str | None,
    chat: str | None,
    system: str | None,
    params: "SamplingParams",
) -> Iterator["RequestOutput"]:
    if text is not None:
        return llm.stream(text, params)
    if chat == "-":
        chat = read_prompt_file("-")
    messages: list[dict[str, Any]] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    messages.append({"role": "user", "content": chat})
    return llm.stream_chat(messages, params)


def _finish(answer: Answer, model: str, *, as_json: bool, streams: bool) -> None:
    if as_json:
        write_now(json.dumps({"model": model, **answer.as_dict()}) + "\n")
        return
    if streams:
        write_now("\n")
        return
    texts = [sample.text for sample in answer.output.outputs]
    for index, text in enumerate(texts):
        write_now(f"--- {index}\n{text}\n")
