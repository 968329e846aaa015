"""What ``hybrid generate`` is given: a text to continue or a message to answer."""

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, BadParameter, Option

from .prompt_input import check_argument, read_prompt_file


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Exactly one of ``prompt``, ``prompt_file`` and ``chat`` is to be given."""

    prompt: Annotated[
        str | None,
        Argument(help="Text to continue; - reads standard input.", show_default=False),
    ] = None
    chat: Annotated[
        str | None,
        Option("--chat", "-c", help="A message to answer, by the model's template."),
    ] = None
    system: Annotated[
        str | None, Option("--system", "-s", help="What the model is told before it.")
    ] = None
    prompt_file: Annotated[
        str | None,
        Option("--prompt-file", "-f", help="Text to continue, from a file or -."),
    ] = None

    def read(self) -> str | list[dict[str, str]]:
        """Return the text to continue, or the messages to answer.

        Raises:
            BadParameter: not exactly one was given, or ``system`` without ``chat``.
            InvalidRequest: it is not UTF-8.
            OSError: the file cannot be read.
        """
        sources = (self.prompt, self.prompt_file, self.chat)
        if sum(source is not None for source in sources) != 1:
            raise BadParameter("give exactly one of PROMPT, --prompt-file and --chat")
        if self.system is not None and self.chat is None:
            raise BadParameter("--system needs --chat")
        if self.chat is not None:
            return self._messages(_text("chat", self.chat))
        if self.prompt_file is not None:
            return read_prompt_file(self.prompt_file)
        return _text("prompt", self.prompt or "")

    def _messages(self, message: str) -> list[dict[str, str]]:
        asked = [{"role": "user", "content": message}]
        if self.system is None:
            return asked
        told = check_argument("system", self.system)
        return [{"role": "system", "content": told}, *asked]


def _text(name: str, argument: str) -> str:
    return read_prompt_file("-") if argument == "-" else check_argument(name, argument)
