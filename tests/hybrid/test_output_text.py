"""Visible text: stop strings over token boundaries, against a whole-text reading."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.scheduler.sampling_params import SamplingParams
from hybrid.tokenizer.detokenizer import IncrementalDetokenizer
from hybrid.tokenizer.output_text import OutputText
from hybrid.tokenizer.stop_matcher import StopMatcher
from tests.hybrid.text_decoders import REPLACEMENT


class Pieces:
    """A decoder whose token i is the i-th piece of text, or of bytes."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Join the pieces as a byte-level decoder does."""
        del skip_special_tokens
        return b"".join(self.pieces[i] for i in token_ids).decode(errors="replace")


class Run(NamedTuple):
    """What came out of one answer."""

    text: str
    deltas: list[str]
    stop: str | None
    num_tokens: int


def run(
    pieces: Sequence[str | bytes],
    *,
    chunk: int = 1,
    ends_at_stop_token: bool = False,
    **params: object,
) -> Run:
    """Append the pieces in chunks, the last chunk as the last."""
    text = OutputText(
        SamplingParams(**params),  # type: ignore[arg-type]
        IncrementalDetokenizer(Pieces(pieces)),
    )
    ids = list(range(len(pieces)))
    starts = list(range(0, len(ids), chunk)) or [0]
    deltas: list[str] = []
    stop = None
    for start in starts:
        before = text.text
        is_last = start == starts[-1]
        stop = text.append(
            ids[start : start + chunk],
            is_last=is_last,
            ends_at_stop_token=is_last and ends_at_stop_token,
        )
        deltas.append(text.new_text)
        assert text.text == before + text.new_text
        if stop is not None:
            break
    return Run(text.text, deltas, stop, text.num_tokens_consumed)


def reference(
    pieces: Sequence[str], stops: Sequence[str], *, include: bool, min_tokens: int
) -> tuple[str, str | None, int]:
    """Text, stop and tokens by searching the whole text at every length."""
    owners = [i for i, piece in enumerate(pieces, start=1) for _ in piece]
    whole = "".join(pieces)
    for end in range(1, len(whole) + 1):
        if owners[end - 1] <= min_tokens:
            continue
        for stop in sorted(stops, key=len, reverse=True):
            if whole[:end].endswith(stop):
                cut = end if include else end - len(stop)
                return whole[:cut], stop, owners[end - 1]
    return whole, None, len(pieces)


ALPHABET = st.text("ab", max_size=4)


@given(
    st.lists(ALPHABET, max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.booleans(),
    st.integers(0, 5),
    st.integers(1, 5),
)
@settings(max_examples=400)
def test_the_text_is_that_of_a_whole_text_search(
    pieces: list[str], stops: list[str], include: bool, min_tokens: int, chunk: int
) -> None:
    """Same text, stop string and token count, however the tokens arrive."""
    found = run(
        pieces,
        chunk=chunk,
        stop=stops,
        include_stop_str_in_output=include,
        min_tokens=min_tokens,
    )
    wanted = reference(pieces, stops, include=include, min_tokens=min_tokens)
    assert (found.text, found.stop, found.num_tokens) == wanted
    assert "".join(found.deltas) == found.text


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=6)))
def test_exactly_the_longest_beginning_of_a_stop_string_is_held(
    text: str, stops: list[str]
) -> None:
    """No more is held back than could still become a stop string, and no less."""
    matcher = StopMatcher(stops)
    for end in range(len(text) + 1):
        if end:
            matcher.scan(text[end - 1], may_match=False)
        so_far = text[:end]
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
        longest = max((len(b) for b in beginnings if so_far.endswith(b)), default=0)
        assert matcher.num_held == longest


def test_no_first_half_of_a_stop_string_is_shown() -> None:
    """Three tokens and a bit make the stop string: nothing is ever given out."""
    pieces = ["DE", "FG", "HI", "Jkl"]
    found = run(pieces, stop="DEFGHIJ")
    assert found.deltas == ["", "", "", ""]
    assert (found.text, found.stop, found.num_tokens) == ("", "DEFGHIJ", 4)
    found = run(pieces, stop="DEFGHIJ", include_stop_str_in_output=True)
    assert found.text == "DEFGHIJ"


def test_held_text_is_shown_when_it_is_no_stop_string_or_nothing_follows() -> None:
    """A near miss comes out at once, an unfinished one with the last token."""
    assert run(["DE", "FX", "D"], stop="DEFG").deltas == ["", "DEFX", "D"]
    assert run(["a", "DE"], stop="DEFG").text == "aDE"


def test_counting_to_ten_stops_before_seven() -> None:
    """The stop string is nowhere in the text, and later tokens do not count."""
    pieces = [f"{number}, " for number in range(1, 11)]
    for chunk in (1, 4, 10):
        found = run(pieces, chunk=chunk, stop=["7"])
        assert found.text == "1, 2, 3, 4, 5, 6, "
        assert (found.stop, found.num_tokens) == ("7", 7)


def test_the_first_to_be_complete_wins_then_the_longest() -> None:
    """Neither the order of the list nor the token's length decides."""
    assert run(["xabcd"], stop=["abcd", "bc"])[2] == "bc"
    assert run(["xabc"], stop=["bc", "abc"])[2] == "abc"


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    """One complete within the first tokens is text; the next one stops."""
    found = run(["a.", "b.", "c", ".", "d"], stop=".", min_tokens=2)
    assert (found.text, found.num_tokens) == ("a.b.c", 4)


def test_a_stop_string_may_begin_within_the_first_tokens() -> None:
    """Held back while it does not count, it counts when a later token completes it."""
    assert run(["xE", "N", "D"], stop="END", min_tokens=2)[:2] == ("x", ["x", "", ""])


@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_the_token_that_ended_the_answer(include: bool) -> None:
    """An end-of-sequence or stop token shows only where stops are to be included."""
    found = run(
        ["Hi", "</s>"], ends_at_stop_token=True, include_stop_str_in_output=include
    )
    assert found.text == ("Hi</s>" if include else "Hi")
    assert (found.stop, found.num_tokens) == (None, 2)


def test_the_models_own_end_and_a_stop_string_work_side_by_side() -> None:
    """With a stop string given, the ending token's text still stays out."""
    found = run(["Hi", " E", "</s>"], ends_at_stop_token=True, stop=" END")
    assert (found.text, found.stop) == ("Hi E", None)


def test_an_unfinished_character_ends_the_text_once() -> None:
    """Cut within a character: one U+FFFD, last, the same in one chunk or many."""
    euro = "€".encode()
    for chunk in (1, 3):
        found = run(["a", euro[:1], euro[1:2]], chunk=chunk)
        assert found.text == "a" + REPLACEMENT


def test_a_stop_string_is_found_across_split_characters() -> None:
    """The bytes of its character come in two tokens."""
    euro = "€".encode()
    found = run(["5 ", euro[:1], euro[1:] + b" more"], stop="€")
    assert (found.text, found.stop) == ("5 ", "€")


def test_after_the_end_nothing_changes() -> None:
    """Tokens after a match or after the last are neither shown nor counted."""
    text = OutputText(
        SamplingParams(stop="b"), IncrementalDetokenizer(Pieces(["a", "b", "c"]))
    )
    assert text.append([0, 1, 2], is_last=False) == "b"
    assert text.append([2], is_last=True) is None
    assert (text.text, text.new_text, text.num_tokens_consumed) == ("a", "", 2)


def test_an_answer_of_no_tokens_is_empty() -> None:
    """Ended before it began: no text, no error."""
    assert run([]) == Run("", [""], None, 0)


def test_ending_without_new_tokens_shows_what_was_held() -> None:
    """An abort flushes the held text."""
    text = OutputText(
        SamplingParams(stop="END"), IncrementalDetokenizer(Pieces(["xE"]))
    )
    text.append([0], is_last=False)
    assert text.text == "x"
    text.append((), is_last=True)
    assert text.text == "xE"
