"""``hybrid chat``: a conversation, at a terminal or through a pipe."""

from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option

from .answer import follow, write_now
from .connect_options import ConnectOptions, open_llm
from .engine_options import EngineOptions
from .entry import describe
from .interrupt import InterruptFlag
from .option_groups import expand_option_groups
from .prompt_input import check_argument, decode
from .sampling_options import SamplingOptions
from .standard_streams import note, stdin, stdout
from .verbosity import Verbose, start_logging

if TYPE_CHECKING:
    from hybrid import LLM, SamplingParams

    from .remote_llm import RemoteLLM

CHAT_TEMPERATURE: Final = 0.7
"""Greedy conversations of small models repeat themselves."""
_HELP: Final = "/clear forgets the conversation, /exit or Ctrl-D leaves"


@expand_option_groups
def chat(
    *,
    system: Annotated[
        str | None, Option("--system", "-s", help="What the model is told first.")
    ] = None,
    server: ConnectOptions,
    engine: EngineOptions,
    sampling: SamplingOptions,
    verbose: Verbose = 0,
) -> None:
    """Talk to a model: /clear forgets, /exit leaves, Ctrl-C stops an answer."""
    start_logging(verbose)
    params = sampling.params(temperature=CHAT_TEMPERATURE)
    system = None if system is None else check_argument("system", system)
    stdin()  # a closed one is told before a model is loaded for nothing
    with open_llm(engine, server) as llm:
        Conversation(llm, params, system=system, verbose=verbose > 0).run()


class Conversation:
    """The messages so far, and who is asked for the next."""

    def __init__(
        self,
        llm: "LLM | RemoteLLM",
        params: "SamplingParams",
        *,
        system: str | None = None,
        verbose: bool = False,
    ) -> None:
        self._llm: Final = llm
        self._params: Final = params
        self._system: Final = system
        self._verbose: Final = verbose
        self._at_terminal: Final = stdin().isatty()
        self._messages: list[dict[str, Any]] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system message."""
        self._messages = []
        if self._system is not None:
            self._messages.append({"role": "system", "content": self._system})

    def run(self) -> None:
        """Ask and answer until the input ends or the user leaves.

        Raises:
            HybridError: a message could not be answered; at a terminal it is only
                reported, and the conversation goes on without that message.
            KeyboardInterrupt: Ctrl-C; at a terminal it only stops an answer.
        """
        if self._at_terminal:
            note(_HELP)
        while (line := self._read()) is not None:
            text = line.strip()
            if text == "/exit":
                return
            if text == "/clear":
                self.clear()
            elif text.startswith("/"):
                note(f"unknown command {text.split()[0]}: {_HELP}")
            elif text:
                self._answer(text)

    def _read(self) -> str | None:
        """Return the next line; ``None`` at the end of input."""
        if not self._at_terminal:
            line = stdin().buffer.readline()
            return decode(line, "standard input") if line else None
        import readline  # noqa: F401, PLC0415 - gives input() its line editing

        while True:
            try:
                # At a stream that is no terminal input() would lose its line editing.
                with redirect_stdout(stdout()):
                    return check_argument("message", input("> "))
            except EOFError:
                write_now("\n")
                return None
            except KeyboardInterrupt:
                write_now("\n")
                note(_HELP)

    def _answer(self, text: str) -> None:
        from hybrid.scheduler.errors import EngineFailed, HybridError  # noqa: PLC0415 - light start

        asked = [*self._messages, {"role": "user", "content": text}]
        try:
            with InterruptFlag() as interrupt:
                outputs = self._llm.stream_chat(asked, self._params)
                answer = follow(outputs, write_now, interrupt.is_set)
        except HybridError as error:
            # Without an engine there is no next answer.
            if not self._at_terminal or isinstance(error, EngineFailed):
                raise
            note(f"error: {describe(error)}")
            return
        write_now("\n")
        # Nobody sits there to go on with the next message.
        if interrupt.is_set() and not self._at_terminal:
            raise KeyboardInterrupt
        said = "" if answer is None else answer.output.outputs[0].text
        self._messages = [*asked, {"role": "assistant", "content": said}]
        if self._verbose and answer is not None:
            note(answer.stats_line())
