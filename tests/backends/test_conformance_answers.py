"""What an author reads when tokens are wrong, and when a tolerance says too little."""

import pytest

from hybrid.testing import Answer, check_answers

EXPECTED = [Answer((1, 2, 3, 4), (9.0, 9.0, 9.0, 9.0)), Answer((5, 6), (9.0, 0.5))]


def test_equal_tokens_pass() -> None:
    """Without a tolerance every token counts."""
    check_answers(EXPECTED, [(1, 2, 3, 4), (5, 6)], tolerance=0, setting="here")


def test_a_wrong_token_is_named_with_its_place() -> None:
    """Setting, prompt, position and both ids."""
    found = r"block size 4: prompt 0, output position 2: got id 8, expected 3"
    with pytest.raises(AssertionError, match=found):
        check_answers(
            EXPECTED, [(1, 2, 8, 4), (5, 6)], tolerance=1, setting="block size 4"
        )


def test_a_close_call_may_fall_either_way() -> None:
    """Where the reference's margin is within the tolerance, and only there."""
    got = [(1, 2, 3, 4), (5, 7)]
    check_answers(EXPECTED, got, tolerance=0.5, setting="here")
    with pytest.raises(AssertionError, match="prompt 1, output position 1"):
        check_answers(EXPECTED, got, tolerance=0.4, setting="here")


@pytest.mark.parametrize(
    ("got", "found"),
    [([(1, 2, 3, 4)], "1 answers to 2 prompts"), ([(1, 2), (5, 6)], "got 2 tokens")],
)
def test_what_is_missing_is_counted(got: list[tuple[int, ...]], found: str) -> None:
    """A short answer is no right one."""
    with pytest.raises(AssertionError, match=found):
        check_answers(EXPECTED, got, tolerance=99, setting="here")


def test_a_tolerance_that_excuses_everything_fails() -> None:
    """A comparison of next to nothing shows nothing."""
    got = [(8, 2, 3, 4), (5, 7)]
    with pytest.raises(AssertionError, match="only 1 of 6 tokens could be compared"):
        check_answers(EXPECTED, got, tolerance=10, setting="here")
