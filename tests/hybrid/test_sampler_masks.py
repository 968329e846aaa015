"""Allowed ids, bad words, the minimum length, bias: alone, together, and at odds."""

from collections.abc import Sequence

import numpy as np
import pytest

from hybrid.sampler.sampler import Sampler
from hybrid.scheduler.errors import UnsupportedFeature
from tests.hybrid.sampler_stand import make_request, random_rows, step

SPELLINGS = {"cat": [(2,)], "big dog": [(3, 4), (5, 4)], "padded": [(9,)], "": [()]}


def encode(word: str) -> Sequence[tuple[int, ...]]:
    """A vocabulary of three words."""
    return SPELLINGS[word]


def answer(
    row: Sequence[float],
    num_steps: int,
    *,
    prompt: Sequence[int] = (1,),
    eos: Sequence[int] = (),
    **params: object,
) -> list[int]:
    """The greedy answer when every step has the same logits."""
    request = make_request(prompt=prompt, eos=eos, temperature=0.0, **params)
    sampler = Sampler(len(row), num_valid_ids=8, encode_bad_word=encode)
    sampler.add_request(request)
    return [step(sampler, [(request, row)]).token_ids[0][0] for _ in range(num_steps)]


RANKED = [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def test_a_greedy_row_with_a_mask_beside_a_random_one() -> None:
    """The masked row is the argmax of its allowed ids; the other is as if alone."""
    vocab = 100
    greedy = make_request("g", temperature=0.0, allowed_token_ids=(7, 3, 50))
    random = make_request("r", top_p=0.9, seed=1)
    rows = random_rows(2, vocab)
    alone = Sampler(vocab)
    alone.add_request(random)
    wanted = step(alone, [(random, rows[1])]).token_ids[0]
    sampler = Sampler(vocab)
    sampler.add_request(greedy)
    sampler.add_request(random)
    sampled = step(sampler, [(greedy, rows[0]), (random, rows[1])])
    best = max((3, 7, 50), key=lambda i: rows[0][i])
    assert sampled.token_ids == ((best,), wanted)


@pytest.mark.parametrize("min_tokens", [0, 1, 4, 6])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_is_banned_for_exactly_min_tokens_outputs(
    min_tokens: int, ignore_eos: bool
) -> None:
    """The prompt does not count; the last id of the vocabulary is not banned."""
    row = [0.0] * 8
    row[5], row[7] = 50.0, 10.0
    got = answer(
        row, 6, prompt=range(20), eos=(5,), min_tokens=min_tokens, ignore_eos=ignore_eos
    )
    assert got == [7] * min_tokens + [5] * (6 - min_tokens)


def test_a_bias_does_not_lift_the_ban_on_the_end() -> None:
    """With +100 on the end, four other tokens come first, then the end."""
    got = answer(RANKED, 5, eos=(0,), min_tokens=4, logit_bias={0: 100.0})
    assert got == [1, 1, 1, 1, 0]


def test_stop_token_ids_are_banned_with_the_end() -> None:
    """Both the model's ends and the request's own wait for min_tokens."""
    got = answer(RANKED, 3, eos=(0, 99), min_tokens=2, stop_token_ids=(1,))
    assert got == [2, 2, 0]


def test_a_bad_word_of_one_token_is_never_drawn() -> None:
    """The likeliest other id takes its place."""
    assert answer(RANKED, 2, bad_words=["cat"], allowed_token_ids=(2, 3)) == [3, 3]


def test_a_bad_word_may_begin_but_not_be_completed() -> None:
    """Its first token comes; then its last is banned, and free again after others."""
    row = [0.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0, 0.0]
    assert answer(row, 2, prompt=(3,), bad_words=["big dog"]) == [3, 3]
    assert answer(row, 2, prompt=(5,), bad_words=["big dog"]) == [3, 3]
    assert answer(row, 2, prompt=(1,), bad_words=["big dog"]) == [4, 4]


def test_a_bad_word_that_cannot_be_spelled_here_bans_nothing() -> None:
    """An id beyond the columns, or no id at all, forbids no id."""
    assert answer(RANKED, 1, bad_words=["padded"]) == [0]


def test_bad_words_without_a_tokenizer_are_refused() -> None:
    """They are never dropped in silence."""
    with pytest.raises(UnsupportedFeature, match="bad_words has 'cat'"):
        Sampler(8).add_request(make_request(bad_words=["cat"]))


def test_bans_that_leave_nothing_give_way_and_the_allowed_ids_stay() -> None:
    """Only the end is allowed, yet banned: the end it is; the same for a bad word."""
    assert answer(RANKED, 2, eos=(6,), min_tokens=2, allowed_token_ids=(6,)) == [6, 6]
    assert answer(RANKED, 1, bad_words=["cat"], allowed_token_ids=(2,)) == [2]
    both = answer(
        RANKED,
        2,
        eos=(6,),
        min_tokens=2,
        allowed_token_ids=(2, 6),
        bad_words=["cat"],
    )
    # The ban applied last gives way: bad words hold, the minimum length does not.
    assert both == [6, 6]


def test_bias_adds_and_cannot_allow_a_forbidden_id() -> None:
    """A bias moves the argmax among the allowed ids only."""
    assert answer(RANKED, 1, logit_bias={3: 10.0}) == [3]
    assert answer(RANKED, 1, logit_bias={3: 100.0}, allowed_token_ids=(4, 5)) == [4]
    assert answer(RANKED, 1, logit_bias={0: -100.0, 1: -100.0}) == [2]


def test_a_random_draw_stays_within_every_mask() -> None:
    """Over many seeds each allowed id comes, and no other."""
    drawn = set()
    for seed in range(60):
        request = make_request(
            seed=seed, allowed_token_ids=(1, 2, 6), bad_words=["cat"], temperature=9.0
        )
        sampler = Sampler(8, encode_bad_word=encode)
        sampler.add_request(request)
        drawn.add(step(sampler, [(request, np.array(RANKED))]).token_ids[0][0])
    assert drawn == {1, 6}


def test_ids_without_a_column_change_nothing() -> None:
    """Allowed or biased ids that the tokenizer lacks (columns 8 up) are not drawn."""
    row = [*RANKED, 99.0, 99.0]
    assert answer(row, 1, allowed_token_ids=(5, 8, 9, 10)) == [5]
    assert answer(row, 1, logit_bias={3: 10.0, 9: 100.0, 12: 100.0}) == [3]
    assert answer(row, 1, logit_bias={9: 100.0}) == [0]


def test_allowed_ids_that_all_lack_a_column_fail_their_request() -> None:
    """There is nothing to draw; the sampler says so instead of breaking off."""
    request = make_request(allowed_token_ids=(8, 9))
    sampler = Sampler(10, num_valid_ids=8)
    sampler.add_request(request)
    sampled = step(sampler, [(request, np.zeros(10))])
    assert [failure.request_id for failure in sampled.failed] == ["a"]
