"""Incremental detokenising: deltas join to the text, whole characters, same spaces."""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from hybrid.tokenizer.detokenizer import IncrementalDetokenizer
from tests.hybrid.text_decoders import (
    REPLACEMENT,
    CountingDecoder,
    as_bytes,
    byte_level,
    sentence_piece,
    token_bytes,
)

BYTE_LEVEL = byte_level()
TOKEN_BYTES = token_bytes(BYTE_LEVEL)
SENTENCE_PIECE = sentence_piece()
METASPACE = sentence_piece(metaspace=True)
FAMILY = "👩‍👩‍👧‍👦 é Ω 漢"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SP = SENTENCE_PIECE.token_to_id


def detokenize(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    *,
    prompt: Sequence[int] = (),
    chunk: int = 1,
    skip_special_tokens: bool = True,
) -> tuple[list[str], str]:
    """The deltas of an answer pushed in chunks, and what ``finish`` adds."""
    detokenizer = IncrementalDetokenizer(
        CountingDecoder(tokenizer),
        prompt_token_ids=prompt,
        skip_special_tokens=skip_special_tokens,
    )
    deltas = [
        detokenizer.push(token_ids[start : start + chunk])
        for start in range(0, len(token_ids), chunk)
    ]
    return deltas, detokenizer.finish()


def text_of(tokenizer: Tokenizer, token_ids: Sequence[int], **options: object) -> str:
    """The whole text of an answer."""
    deltas, rest = detokenize(tokenizer, token_ids, **options)  # type: ignore[arg-type]
    return "".join(deltas) + rest


def after(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> str:
    """decode(prompt + answer) without decode(prompt), special tokens skipped."""
    whole, start = tokenizer.decode(prompt + answer), tokenizer.decode(prompt)
    assert whole.startswith(start)
    return whole[len(start) :]


def without_replacement(text: str) -> str:
    """The characters that are whole."""
    return text.replace(REPLACEMENT, "")


def test_pieces_of_emoji_come_out_whole() -> None:
    """Byte by byte, no replacement character ever shows, and nothing is lost."""
    ids = [BYTE_LEVEL.token_to_id(t) for t in _byte_tokens(FAMILY)]
    deltas, rest = detokenize(BYTE_LEVEL, ids)
    assert "".join(deltas) == FAMILY
    assert rest == ""
    assert REPLACEMENT not in "".join(deltas)
    assert [len(delta) for delta in deltas[:4]] == [0, 0, 0, 1]
    ids = as_bytes(FAMILY.encode())
    assert text_of(SENTENCE_PIECE, ids) == FAMILY


def _byte_tokens(text: str) -> list[str]:
    by_bytes = {value: token_id for token_id, value in TOKEN_BYTES.items()}
    ids = [by_bytes[bytes([byte])] for byte in text.encode()]
    return [BYTE_LEVEL.id_to_token(token_id) for token_id in ids]


@pytest.mark.parametrize("length", range(1, len(FAMILY.encode())))
def test_an_answer_cut_within_a_character_ends_with_one_replacement(
    length: int,
) -> None:
    """One U+FFFD, at the end, whichever byte is the last and whichever decoder."""
    cut = FAMILY.encode()[:length]
    whole = cut.decode(errors="ignore")
    wanted = whole if whole.encode() == cut else whole + REPLACEMENT
    ids = [BYTE_LEVEL.token_to_id(t) for t in _byte_tokens(FAMILY)][:length]
    deltas, rest = detokenize(BYTE_LEVEL, ids)
    assert "".join(deltas) == whole
    assert whole + rest == wanted
    assert text_of(SENTENCE_PIECE, as_bytes(cut)) == wanted


@given(TEXTS, TEXTS)
def test_any_text_comes_back_from_byte_level_tokens(prompt: str, answer: str) -> None:
    """After any prompt the deltas join to the text and never show half a character."""
    ids = BYTE_LEVEL.encode(answer).ids
    deltas, rest = detokenize(BYTE_LEVEL, ids, prompt=BYTE_LEVEL.encode(prompt).ids)
    assert "".join(deltas) + rest == answer
    assert without_replacement("".join(deltas)) == without_replacement(answer)


# Without the two characters of the limit that the detokeniser names.
SP_IDS = st.lists(
    st.one_of(
        st.sampled_from(range(259, SENTENCE_PIECE.get_vocab_size())).map(lambda i: [i]),
        st.characters(exclude_categories=["Cs"], exclude_characters="\u2581\ufffd").map(
            lambda c: as_bytes(c.encode())
        ),
        st.sampled_from([[1], [2]]),
    ),
    max_size=20,
).map(lambda runs: list(itertools.chain.from_iterable(runs)))


@pytest.mark.parametrize("tokenizer", [SENTENCE_PIECE, METASPACE])
@given(prompt=SP_IDS, answer=SP_IDS)
def test_sentence_piece_answers_are_the_full_decode_without_the_prompt(
    tokenizer: Tokenizer, prompt: list[int], answer: list[int]
) -> None:
    """Words, bytes and special tokens in any order: same text, same spaces."""
    got = text_of(tokenizer, answer, prompt=prompt)
    wanted = after(tokenizer, prompt, answer)
    # Literal replacement characters at the very end are read as an unfinished one.
    assert got.rstrip(REPLACEMENT) == wanted.rstrip(REPLACEMENT)
    assert got.endswith(REPLACEMENT) == wanted.endswith(REPLACEMENT)


@pytest.mark.parametrize("tokenizer", [SENTENCE_PIECE, METASPACE])
def test_spaces_between_words_stay(tokenizer: Tokenizer) -> None:
    """No "Helloworld" comes of two words; the first space follows the prompt."""
    hello, world = SP("▁Hello"), SP("▁world")
    assert detokenize(tokenizer, [hello, world])[0] == ["Hello", " world"]
    assert text_of(tokenizer, [hello, world], prompt=[1]) == "Hello world"
    assert text_of(tokenizer, [world], prompt=[1, hello]) == " world"
    assert text_of(tokenizer, [hello, 2, world]) == "Hello world"
    assert text_of(tokenizer, [hello, 2, 1, 1, world]) == "Hello world"
    assert text_of(tokenizer, [SP("▁"), world]) == " world"


def test_the_space_is_there_after_a_prompt_of_special_tokens_at_its_end() -> None:
    """The context reaches back past any number of invisible tokens."""
    prompt = [SP("▁Hello"), *[2] * 40]
    assert text_of(SENTENCE_PIECE, [SP("▁world")], prompt=prompt) == " world"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE])
def test_special_tokens_show_only_where_wanted(tokenizer: Tokenizer) -> None:
    """Skipped in the middle by default; spelled out on request."""
    end = tokenizer.token_to_id("</s>")
    h = tokenizer.token_to_id("h")
    assert text_of(tokenizer, [h, end, h]) == "hh"
    shown = text_of(tokenizer, [h, end, h], skip_special_tokens=False)
    assert shown == tokenizer.decode([h, end, h], skip_special_tokens=False)
    assert "</s>" in shown


@given(st.lists(st.sampled_from(sorted(TOKEN_BYTES)), max_size=60))
@settings(max_examples=300)
def test_random_byte_level_tokens_are_pythons_own_reading(ids: list[int]) -> None:
    """Broken bytes: U+FFFD where Python's decoder puts it, one at the very end."""
    wanted = b"".join(TOKEN_BYTES[i] for i in ids).decode(errors="replace")
    got = text_of(BYTE_LEVEL, ids)
    assert got.rstrip(REPLACEMENT) == wanted.rstrip(REPLACEMENT)
    assert got.endswith(REPLACEMENT) == wanted.endswith(REPLACEMENT)


@given(st.lists(st.integers(0, 255), max_size=60))
@settings(max_examples=300)
def test_broken_byte_runs_never_spoil_the_characters_beside_them(
    values: list[int],
) -> None:
    """With byte fallback too, every whole character of a garbled run is there."""
    got = text_of(SENTENCE_PIECE, as_bytes(values), prompt=[SP("▁Hello")])
    assert without_replacement(got) == bytes(values).decode(errors="ignore")


IDS = st.lists(st.integers(0, SENTENCE_PIECE.get_vocab_size() + 3), max_size=40)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE, METASPACE])
@given(prompt=IDS, ids=IDS, chunk=st.integers(2, 9), skip=st.booleans())
def test_chunks_make_no_difference_and_nothing_raises(
    tokenizer: Tokenizer, prompt: list[int], ids: list[int], chunk: int, skip: bool
) -> None:
    """Any ids, unknown ones too: one by one or many at once, the text is the same."""
    one = text_of(tokenizer, ids, prompt=prompt, skip_special_tokens=skip)
    many = text_of(tokenizer, ids, prompt=prompt, chunk=chunk, skip_special_tokens=skip)
    assert one == many
    one.encode()  # no lone surrogates


def test_a_character_begun_by_the_prompt_belongs_to_the_answer() -> None:
    """The answer that completes it shows it; one that says nothing shows nothing."""
    euro = as_bytes("€".encode())
    prompt = [SP("▁Hello"), *euro[:2]]
    assert text_of(SENTENCE_PIECE, euro[2:], prompt=prompt) == "€"
    assert text_of(SENTENCE_PIECE, [], prompt=prompt) == ""
    assert text_of(SENTENCE_PIECE, [2], prompt=prompt) == ""
    assert text_of(SENTENCE_PIECE, [SP("▁world")], prompt=prompt) == " world"


def test_a_literal_replacement_character_is_a_character() -> None:
    """Held until something follows, then shown; shown at the end as well."""
    literal = SP(REPLACEMENT)
    assert text_of(SENTENCE_PIECE, [literal, SP("▁world")]) == REPLACEMENT + " world"
    assert text_of(SENTENCE_PIECE, [SP("▁world"), literal]) == "world" + REPLACEMENT


def test_a_literal_replacement_character_in_bytes_swallows_nothing() -> None:
    """Spelled by three byte tokens, it neither hides nor doubles what follows."""
    for text in (f"{REPLACEMENT}\u0800", f"a{REPLACEMENT}{REPLACEMENT}\u0800b"):
        ids = as_bytes(text.encode())
        assert text_of(SENTENCE_PIECE, ids) == text


def test_a_space_spelled_in_bytes_keeps_the_characters_after_it_whole() -> None:
    """A context that shows nothing, its space stripped, would hide a broken run."""
    ids = [SP("▁"), SP("▁"), *as_bytes(" \U00010000".encode())]
    assert text_of(SENTENCE_PIECE, ids) == SENTENCE_PIECE.decode(ids)


def test_text_that_a_longer_decode_would_change_stays_as_it_was_shown() -> None:
    """A broken byte after whole ones spoils the library's full decode, not ours."""
    ids = [*as_bytes("Aé".encode() + b"\xe2"), SP("▁world")]
    assert SENTENCE_PIECE.decode(ids) == REPLACEMENT * 4 + " world"
    deltas, rest = detokenize(SENTENCE_PIECE, ids)
    assert deltas == ["A", "", "é", "", REPLACEMENT + " world"]
    assert rest == ""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["words", "garbage", "special", "crossing"])
@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE])
def test_work_per_token_is_bounded(tokenizer: Tokenizer, kind: str, seed: int) -> None:
    """Text, broken bytes, invisible tokens: a window is decoded again, never more."""
    rng = random.Random(seed)
    byte_ids = as_bytes(range(256))
    if tokenizer is BYTE_LEVEL:
        byte_ids = [i for i, value in TOKEN_BYTES.items() if len(value) == 1]
    h = tokenizer.token_to_id("h")
    ids = {
        "words": [h] * 2000,
        "garbage": rng.choices(byte_ids[128:], k=2000),
        "special": [tokenizer.token_to_id("</s>")] * 2000,
        "crossing": ([h] + byte_ids[-60:-59] * 7) * 250,
    }[kind]
    decoder = CountingDecoder(tokenizer)
    detokenizer = IncrementalDetokenizer(decoder, prompt_token_ids=[h] * 50)
    detokenizer.push(ids)
    detokenizer.finish()
    assert decoder.num_tokens <= 150 * len(ids)
    assert decoder.num_calls <= 12 * len(ids)


def test_characters_split_over_tokens_without_end_stay_right_and_bounded() -> None:
    """Tokens that each end one character and begin the next never have a clean end."""
    vocab = {"Ã": 0, "©": 1, "©Ã": 2}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    decoder = CountingDecoder(tokenizer)
    detokenizer = IncrementalDetokenizer(decoder)
    deltas = [detokenizer.push([i]) for i in (0, *[2] * 500, 1)]
    assert deltas == ["", *["é"] * 501]
    assert decoder.num_tokens <= 150 * 502


@pytest.mark.parametrize("prompt", [[], as_bytes(b" ")])
def test_a_first_space_in_bytes_spoils_no_character_after_it(prompt: list[int]) -> None:
    """A stripped space is a broken byte, too, until the character is whole."""
    answer = as_bytes("\U00010000".encode())
    if not prompt:
        answer = [*as_bytes(b" "), *answer]
    assert text_of(SENTENCE_PIECE, answer, prompt=prompt) == "\U00010000"
