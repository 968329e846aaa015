"""Text to token ids and back, for one model; chat messages to token ids.

The ``tokenizers`` library runs it, and loads it too where the files allow; transformers
loads the others. Knows nothing of requests; streaming lives in the incremental
detokeniser.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import tokenizers

from hybrid.backends.checkpoint.garbage_collection import paused_garbage_collection
from hybrid.scheduler.errors import CheckpointError, ConfigError, InvalidRequest
from hybrid.scheduler.shown_value import shown

from .auto_tokenizer import load_auto_tokenizer
from .kept_tokenizer import load_or_keep
from .plain_tokenizer import load_plain_tokenizer
from .stop_tokens import find_eos_token_ids

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

_PROBE: Final = "Hello world"


class Tokenizer:
    """A model's tokenizer."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap ``backend``.

        Args:
            backend: what encodes and decodes.
            eos_token_ids: ids that end an answer.
            special_tokens: ``bos_token`` and the like, as templates read them.
            chat_templates: by name; ``default`` is the usual one.
        """
        # Some files carry the padding and truncation of the training run.
        backend.no_padding()
        backend.no_truncation()
        self.backend: Final = backend
        """What encodes and decodes; for the incremental detokeniser."""
        self.eos_token_ids: Final = eos_token_ids
        """Every id that ends an answer, from all of the model's files."""
        self._special_tokens: Final = dict(special_tokens or {})
        self._chat_templates: Final = dict(chat_templates or {})
        self._compiled: Final[dict[str, ChatTemplate]] = {}

    @classmethod
    def from_directory(
        cls,
        path: Path,
        *,
        chat_template: str | None = None,
        cache_dir: Path | None = None,
    ) -> Self:
        """Load the tokenizer of a Hugging Face directory.

        Args:
            path: the directory.
            chat_template: used instead of all of the model's own templates.
            cache_dir: keeps what takes transformers to load, so that the next time
                does not; ``None`` keeps nothing.

        Raises:
            CheckpointError: there is none, or it cannot be read.
            ConfigError: ``chat_template`` is no template.
        """
        if not path.is_dir():
            raise CheckpointError(f"{path} is no directory")
        with paused_garbage_collection():
            loaded = load_plain_tokenizer(path) or load_or_keep(
                path, cache_dir, load_auto_tokenizer
            )
        backend = loaded.backend
        templates = _own_templates(path, loaded.chat_template)
        if chat_template is not None:
            _check_template(chat_template)
            templates = {"default": chat_template}
        tokenizer = cls(
            backend,
            eos_token_ids=find_eos_token_ids(path, backend.token_to_id),
            special_tokens=loaded.special_tokens,
            chat_templates=templates,
        )
        # A file may load and then fail at every text; say so now, not at a request.
        try:
            tokenizer.decode(tokenizer.encode(_PROBE), skip_special_tokens=False)
        except CheckpointError as error:
            raise CheckpointError(f"{path / 'tokenizer.json'}: {error}") from error
        return tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Turn text into token ids, BOS included where the model wants one.

        Special tokens spelled out in the text become their ids.

        Raises:
            InvalidRequest: ``text`` holds half a surrogate pair, which is no character.
            CheckpointError: the tokenizer contradicts itself.
        """
        return self._encode(text, add_special_tokens, "prompt")

    def _encode(self, text: str, add_special_tokens: bool, field: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{field} is no valid Unicode text: a lone surrogate "
                f"U+{ord(text[error.start]):04X} at character {error.start}",
                field=field,
                value=error.start,
            ) from error
        try:
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except BaseException as error:
            if (fault := _library_fault(error)) is None:
                raise
            raise fault from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Turn token ids into text, spaces exactly as they are.

        Ids that the tokenizer lacks (rows that pad the model's head) give nothing.

        Raises:
            CheckpointError: the tokenizer contradicts itself.
        """
        # No context manager: one costs more than decoding a token, as each step does.
        try:
            return self.backend.decode(
                list(token_ids), skip_special_tokens=skip_special_tokens
            )
        except BaseException as error:
            if (fault := _library_fault(error)) is None:
                raise
            raise fault from error

    @cached_property
    def vocab_size(self) -> int:
        """Highest id + 1. The model's head may have more rows than that, as padding."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def max_token_characters(self) -> int:
        """The longest token's length: no text has more characters a token than that."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)))

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that ``skip_special_tokens`` leaves out."""
        return frozenset(
            index
            for index, token in self.backend.get_added_tokens_decoder().items()
            if token.special
        )

    @property
    def bos_token_id(self) -> int | None:
        """The id that starts a text."""
        token = self._special_tokens.get("bos_token")
        return None if token is None else self.backend.token_to_id(token)

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat_template`` works without a template of the caller's."""
        return bool(self._chat_templates)

    def render_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """Turn messages into the text that the model was trained on.

        Args:
            messages: OpenAI style; see ``normalize_messages``.
            tools: descriptions of functions that the model may call.
            add_generation_prompt: end with the start of the assistant's answer.
            chat_template: the name of one of the model's templates, or a template.
            variables: whatever else the template reads.

        Raises:
            InvalidRequest: there is no template, or it rejects the messages.
        """
        template = self._template(chat_template, tools is not None)
        return template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        **variables: Any,
    ) -> list[int]:
        """Turn messages into token ids; see ``render_chat_template``.

        The template spells out its special tokens, so none is added: one BOS at most.

        Raises:
            InvalidRequest: there is no template, it rejects the messages, or they hold
                half a surrogate pair.
        """
        text = self.render_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            chat_template=chat_template,
            **variables,
        )
        return self._encode(text, add_special_tokens=False, field="messages")

    def _template(self, wanted: str | None, with_tools: bool) -> "ChatTemplate":
        named = self._chat_templates
        if wanted is None and with_tools and "tool_use" in named:
            wanted = "tool_use"
        source = named.get(wanted or "default", wanted)
        if source is None:
            others = f"; it has {', '.join(named)}" if named else ""
            raise InvalidRequest(
                "this model has no chat template"
                f"{others}. Pass chat_template=, or use a plain prompt (models that "
                "chat usually say 'Instruct' or 'Chat' in their name)",
                field="chat_template",
            )
        if wanted is not None and wanted not in named:
            return _compile(source, self._special_tokens)
        if source not in self._compiled:
            self._compiled[source] = _compile(
                source, self._special_tokens, wanted or "default"
            )
        return self._compiled[source]


def _library_fault(error: BaseException) -> CheckpointError | None:
    """What an error of the ``tokenizers`` library means; ``None``: it is not its own.

    It raises plain ``Exception``, or panics: a ``BaseException`` of a class that cannot
    be imported, which would end the thread that it meets.
    """
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        return None
    return CheckpointError(
        f"the model's tokenizer contradicts itself: {type(error).__name__}: {error}"
    )


def _own_templates(path: Path, templates: object) -> Mapping[str, str]:
    """The model's templates by name, whichever way its files give them."""
    if templates is None:
        return {}
    if isinstance(templates, str):
        return {"default": templates} if templates else {}
    if isinstance(templates, dict) and all(
        isinstance(part, str) for pair in templates.items() for part in pair
    ):
        return templates
    raise CheckpointError(
        f"{path / 'tokenizer_config.json'}: chat_template is {shown(templates)}, "
        "neither a text nor a list of named texts"
    )


def _compile(
    source: str, special_tokens: Mapping[str, str], name: str | None = None
) -> "ChatTemplate":
    from .chat_template import ChatTemplate  # noqa: PLC0415 - Jinja, for who chats

    return ChatTemplate(source, special_tokens, name)


def _check_template(source: str) -> None:
    """Compile it once, so that the engine does not start with a broken one."""
    try:
        _compile(source, {})
    except InvalidRequest as error:
        raise ConfigError(str(error)) from error
