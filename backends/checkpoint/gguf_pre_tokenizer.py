"""How a byte-level vocabulary splits text: GGUF's ``tokenizer.ggml.pre``.

A GGUF names the split and no more; what the names mean stands in llama.cpp, and the
patterns themselves in the ``tokenizer.json`` of the models that the names come from.

Source: llama.cpp ``src/llama-vocab.cpp`` (names), the models' ``tokenizer.json``
(patterns).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, normalizers, pre_tokenizers


@dataclass(frozen=True, slots=True)
class SplitRule:
    """What one name of a pre-tokenizer stands for."""

    pattern: str | None
    """Text is cut into matches and what lies between; ``None``: GPT-2's pattern."""
    digits_alone: bool = False
    """Every digit is a piece of its own, before the pattern applies."""
    ignores_merges: bool = False
    """A piece that is a token as a whole is that token, whatever the merges say."""
    adds_bos: bool = False
    """Whether a BOS is added where the file does not say."""
    composes: bool = False
    """Text is brought into Unicode's composed form (NFC) first."""

    def normalizer(self) -> normalizers.Normalizer | None:
        """What is done to text before it is split."""
        return normalizers.NFC() if self.composes else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The split, and the spelling of bytes as printable characters."""
        if self.pattern is not None:
            steps = [
                pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        else:
            steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        if self.digits_alone:
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
        return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]


_ENGLISH: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD: Final = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3: Final = _ENGLISH + _WORD + r"|\p{N}{1,3}" + _REST
_QWEN2: Final = _ENGLISH + _WORD + r"|\p{N}" + _REST
_QWEN35: Final = (
    _ENGLISH
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_SLASH: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_REST_SLASH}"
)
_GPT4O: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENGLISH}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENGLISH}?"
    rf"|\p{{N}}{{1,3}}{_REST_SLASH}"
)

GPT2_RULE: Final = SplitRule(None)
_GROUPS: Final[Mapping[SplitRule, tuple[str, ...]]] = {
    GPT2_RULE: (
        "gpt-2",
        "phi-2",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "granite-docling",
        "exaone4",
        "gigachat",
        "a.x-4.0",
        "mellum",
    ),
    SplitRule(None, digits_alone=True): (
        "smollm",
        "starcoder",
        "refact",
        "command-r",
        "codeshell",
        "exaone",
        "minerva-7b",
        "mellum2",
    ),
    SplitRule(_LLAMA3, ignores_merges=True, adds_bos=True): (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ),
    SplitRule(_LLAMA3): ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    SplitRule(_QWEN2, composes=True): (
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "megrez",
    ),
    SplitRule(_QWEN2): ("stablelm2", "hunyuan", "solar-open", "grok-2"),
    SplitRule(_QWEN35, composes=True): ("qwen35",),
    SplitRule(_TEKKEN, ignores_merges=True, adds_bos=True): ("tekken",),
    SplitRule(_GPT4O): ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
}

SPLIT_RULES: Final[Mapping[str, SplitRule]] = {
    name: rule for rule, names in _GROUPS.items() for name in names
}
"""From the name that a file gives to the rule."""
