"""Renders a model's chat template: Jinja in a sandbox, with limits.

A template comes with a model or with a request and is a program. It sees only what it
is given and cannot change it. What it does is counted and what it makes is bounded; see
``template_environment`` for what exactly.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2

from hybrid.scheduler.errors import InvalidRequest
from hybrid.scheduler.shown_value import shown

from .chat_messages import normalize_messages
from .template_budget import TemplateBudget, TemplateLimit
from .template_environment import TemplateEnvironment, bounded_pieces

MAX_TEMPLATE_CHARACTERS: Final = 256 * 1024
"""Longest source; those of real models have a few ten thousand."""


class ChatTemplate:
    """One compiled template."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], name: str | None = None
    ) -> None:
        """Compile ``source``.

        Args:
            source: in Jinja.
            special_tokens: ``bos_token`` and the like, which it may read.
            name: the model's for it; for errors.

        Raises:
            InvalidRequest: it is no Jinja template, or longer than
                ``MAX_TEMPLATE_CHARACTERS``.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidRequest(
                f"chat_template has {len(source)} characters, at most "
                f"{MAX_TEMPLATE_CHARACTERS} are compiled",
                field="chat_template",
                value=len(source),
            )
        self.source: Final = source
        self._special_tokens: Final = dict(special_tokens)
        self._label: Final = "the chat template" + (f" {shown(name)}" if name else "")
        try:
            self._code: Final = TemplateEnvironment(TemplateBudget()).compile(source)
        # The template's own faults, and what Python says of the code made from it: a
        # break without a loop, too many nested blocks, a number of too many digits.
        except Exception as error:
            raise InvalidRequest(
                f"chat_template is no valid Jinja template: {error}",
                field="chat_template",
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render ``messages`` as text, special tokens included.

        Args:
            messages: OpenAI style; see ``normalize_messages``.
            tools: descriptions of functions that the model may call.
            add_generation_prompt: end with the start of the assistant's answer.
            variables: whatever else the template reads.

        Raises:
            InvalidRequest: the messages cannot be rendered, and what the template says
                about them; or it takes more steps or makes more than it may.
        """
        context = {
            "tools": None if tools is None else list(tools),
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": normalize_messages(messages, self.source),
            "add_generation_prompt": add_generation_prompt,
        }
        budget = TemplateBudget()
        environment = TemplateEnvironment(budget)
        template = jinja2.Template.from_code(
            environment, self._code, environment.make_globals(None)
        )
        try:
            return "".join(bounded_pieces(budget, template.generate(context)))
        except TemplateLimit as error:
            raise InvalidRequest(
                f"{self._label} is stopped: {error}", field="chat_template"
            ) from error
        # A program over what the caller sent: any failure is the caller's.
        except Exception as error:
            raise InvalidRequest(
                f"{self._label} rejects these messages: {error}", field="messages"
            ) from error
        finally:
            budget.forget()
