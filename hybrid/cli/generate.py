"""``hybrid generate``: one prompt, one streamed answer."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Option

from .answer import Answer, follow, write_now
from .engine_options import EngineOptions, open_engine
from .interrupt import InterruptFlag
from .option_groups import expand_option_groups
from .prompt_options import PromptOptions
from .sampling_options import SamplingOptions
from .standard_streams import note
from .verbosity import Verbose, start_logging

if TYPE_CHECKING:
    from hybrid import LLM, RequestOutput, SamplingParams


@expand_option_groups
def generate(
    *,
    source: PromptOptions,
    n: Annotated[
        int, Option("--n", help="Answers to draw; above 1 they come when all are done.")
    ] = 1,
    as_json: Annotated[
        bool, Option("--json", help="One JSON object at the end, no stream.")
    ] = False,
    verbose: Verbose = 0,
    engine: EngineOptions,
    sampling: SamplingOptions,
) -> None:
    """Continue a text, or answer a message with --chat; streams to stdout."""
    start_logging(verbose)
    prompt = source.read()
    params = sampling.params(temperature=0.0, n=n)
    streams = not as_json and n == 1
    with open_engine(engine) as llm, InterruptFlag() as interrupt:
        outputs = _start(llm, prompt, params)
        answer = follow(outputs, write_now if streams else None, interrupt.is_set)
        # The last line ends before the engine's own closing events are written.
        if answer is not None:
            _finish(answer, engine.model, as_json=as_json, streams=streams)
    if answer is not None and verbose:
        note(answer.stats_line())
    if interrupt.is_set():
        raise KeyboardInterrupt


def _start(
    llm: "LLM", prompt: str | list[dict[str, str]], params: "SamplingParams"
) -> Iterator["RequestOutput"]:
    if isinstance(prompt, str):
        return llm.stream(prompt, params)
    return llm.stream_chat(prompt, params)


def _finish(answer: Answer, model: str | None, *, as_json: bool, streams: bool) -> None:
    if as_json:
        write_now(json.dumps({"model": model, **answer.as_dict()}) + "\n")
    elif streams:
        write_now("\n")
    else:
        for sample in answer.output.outputs:
            write_now(f"--- {sample.index}\n{sample.text}\n")
