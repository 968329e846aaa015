"""``hybrid generate``: one prompt, one streamed answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from .answer import Answer, follow, write_now
from .connect_options import ConnectOptions, open_llm
from .engine_options import EngineOptions
from .interrupt import InterruptFlag
from .option_groups import expand_option_groups
from .prompt_options import PromptOptions
from .remote_llm import RemoteLLM
from .sampling_options import SamplingOptions
from .standard_streams import note
from .verbosity import Verbose, start_logging

if TYPE_CHECKING:
    from hybrid import LLM, RequestOutput, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOptions:
    """How answers are given."""

    n: Annotated[
        int, Option("--n", help="Answers to draw; above 1 they come when all are done.")
    ] = 1
    as_json: Annotated[
        bool, Option("--json", help="One JSON object at the end, no stream.")
    ] = False

    @property
    def streams(self) -> bool:
        """Whether text is written as it comes."""
        return not self.as_json and self.n == 1


@expand_option_groups
def generate(
    *,
    source: PromptOptions,
    form: FormOptions,
    verbose: Verbose = 0,
    server: ConnectOptions,
    engine: EngineOptions,
    sampling: SamplingOptions,
) -> None:
    """Continue a text, or answer a message with --chat; streams to stdout."""
    start_logging(verbose)
    prompt = source.read()
    params = sampling.params(temperature=0.0, n=form.n)
    with open_llm(engine, server) as llm, InterruptFlag() as interrupt:
        outputs = _start(llm, prompt, params)
        answer = follow(outputs, write_now if form.streams else None, interrupt.is_set)
        # The last line ends before the engine's own closing events are written.
        if answer is not None:
            model = llm.model_name if isinstance(llm, RemoteLLM) else engine.model
            _finish(answer, model, form)
    if answer is not None and verbose:
        note(answer.stats_line())
    if interrupt.is_set():
        raise KeyboardInterrupt


def _start(
    llm: "LLM | RemoteLLM", prompt: str | list[dict[str, str]], params: "SamplingParams"
) -> Iterator["RequestOutput"]:
    if isinstance(prompt, str):
        return llm.stream(prompt, params)
    return llm.stream_chat(prompt, params)


def _finish(answer: Answer, model: str | None, form: FormOptions) -> None:
    if form.as_json:
        write_now(json.dumps({"model": model, **answer.as_dict()}) + "\n")
    elif form.streams:
        write_now("\n")
    else:
        for sample in answer.output.outputs:
            write_now(f"--- {sample.index}\n{sample.text}\n")
