"""Builds a GGUF's tokenizer: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

From the file's own vocabulary, scores, merges and token types, so that ids are what the
model was trained on. transformers' conversion takes 3.6 s on 49 thousand tokens and
does not know every pre-tokenizer (SmolLM's, which keeps digits apart, among them).
"""

from typing import Any, Final

import structlog
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
)

from hybrid.scheduler.errors import CheckpointError

from .gguf_header import GGUFHeader
from .gguf_pre_tokenizer import GPT2_RULE, SPLIT_RULES, SplitRule
from .gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, GGUFVocabulary

log = structlog.get_logger()

_SPACE: Final = "\u2581"
_MODELS: Final = ("gpt2", "llama")


def build_gguf_tokenizer(vocabulary: GGUFVocabulary) -> Tokenizer:
    """Build the tokenizer that the file describes.

    Raises:
        CheckpointError: the description is incomplete or of an unknown kind.
    """
    header = vocabulary.header
    kind = header.text("tokenizer.ggml.model")
    if kind not in _MODELS:
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.model is {kind!r}; supported: "
            f"{', '.join(_MODELS)}"
        )
    if kind == "gpt2":
        rule = _split_rule(header)
        tokenizer = _byte_level(vocabulary, rule)
        adds_bos = rule.adds_bos
    else:
        tokenizer = _sentencepiece(vocabulary)
        adds_bos = True
    _add_tokens(vocabulary, tokenizer)
    _add_post_processor(vocabulary, tokenizer, adds_bos)
    return tokenizer


def _flag(header: GGUFHeader, key: str, default: bool) -> bool:
    value = header.flag(key)
    return default if value is None else value


def _split_rule(header: GGUFHeader) -> SplitRule:
    name = header.text("tokenizer.ggml.pre")
    if name is not None and name in SPLIT_RULES:
        return SPLIT_RULES[name]
    log.warning(
        "tokenizer.pre_tokenizer_unknown",
        path=str(header.path),
        pre_tokenizer=name,
        used="gpt-2",
        consequence="prompts may be split otherwise than the model was trained on",
    )
    return GPT2_RULE


def _byte_level(vocabulary: GGUFVocabulary, rule: SplitRule) -> Tokenizer:
    header = vocabulary.header
    merges = header.strings("tokenizer.ggml.merges")
    if merges is None:
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.merges is missing; a 'gpt2' tokenizer "
            "cannot work without it. Convert the model again with a current llama.cpp"
        )
    pairs = [_halves(header, merge) for merge in merges]
    tokenizer = Tokenizer(_bpe(vocabulary, pairs, ignore_merges=rule.ignores_merges))
    if (normalizer := rule.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _halves(header: GGUFHeader, merge: str) -> tuple[str, str]:
    # Spaces inside tokens are spelled otherwise here; one that is not the first
    # character parts the halves.
    cut = merge.find(" ", 1)
    if cut < 0 or cut == len(merge) - 1:
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.merges holds {merge!r}, no pair of tokens"
        )
    return merge[:cut], merge[cut + 1 :]


def _bpe(
    vocabulary: GGUFVocabulary, merges: list[tuple[str, str]], **options: Any
) -> models.BPE:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    try:
        return models.BPE(vocab=ids, merges=merges, **options)
    except Exception as error:  # tokenizers raises no narrower class
        raise CheckpointError(
            f"{vocabulary.header.path}: tokenizer.ggml.merges and tokens contradict "
            f"each other: {error}"
        ) from error


def _sentencepiece(vocabulary: GGUFVocabulary) -> Tokenizer:
    header = vocabulary.header
    listed = header.strings("tokenizer.ggml.merges")
    if listed is not None:
        pairs = [_halves(header, merge) for merge in listed]
    else:
        pairs = _merges_by_score(vocabulary)
    unknown = vocabulary.special_token("unknown")
    if unknown is None and UNKNOWN in vocabulary.types:
        unknown = vocabulary.tokens[vocabulary.types.index(UNKNOWN)]
    model = _bpe(
        vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", _SPACE)
    decoding: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if _flag(header, "tokenizer.ggml.add_space_prefix", True):
        prepend = normalizers.Prepend(_SPACE)
        tokenizer.normalizer = normalizers.Sequence([prepend, replace])
        decoding.append(decoders.Strip(content=" ", left=1, right=0))
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges_by_score(vocabulary: GGUFVocabulary) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, the highest score first.

    SentencePiece joins whichever neighbours give the token of the highest score; a list
    of merges in that order says the same.
    """
    scores = vocabulary.header.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(vocabulary.tokens):
        raise CheckpointError(
            f"{vocabulary.header.path}: a 'llama' tokenizer needs "
            "tokenizer.ggml.merges, or tokenizer.ggml.scores for every token"
        )
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    ranked = []
    for token, score, kind in zip(
        vocabulary.tokens, scores.tolist(), vocabulary.types, strict=False
    ):
        if kind == CONTROL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append(((-score, ids[left], ids[right]), (left, right)))
    ranked.sort()
    return [pair for _, pair in ranked]


def _add_tokens(vocabulary: GGUFVocabulary, tokenizer: Tokenizer) -> None:
    """Make control and user-defined tokens match whole, before the text is split."""
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(token, normalized=False, special=special)
            for token, type_ in zip(vocabulary.tokens, vocabulary.types, strict=True)
            if type_ == kind
        ]
        if special:
            tokenizer.add_special_tokens(added)
        else:
            tokenizer.add_tokens(added)


def _add_post_processor(
    vocabulary: GGUFVocabulary, tokenizer: Tokenizer, adds_bos: bool
) -> None:
    header = vocabulary.header
    first, special = [], []
    last = []
    bos, eos = vocabulary.special_id("bos"), vocabulary.special_id("eos")
    if _flag(header, "tokenizer.ggml.add_bos_token", adds_bos) and bos is not None:
        first.append(vocabulary.tokens[bos])
        special.append((vocabulary.tokens[bos], bos))
    if _flag(header, "tokenizer.ggml.add_eos_token", False) and eos is not None:
        last.append(vocabulary.tokens[eos])
        special.append((vocabulary.tokens[eos], eos))
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last], special_tokens=special
        )
