"""Clients' request ids beside the engine's: every one its own, none kept."""

import pytest

from hybrid import InvalidRequest
from hybrid.input_processor import check_request_id
from hybrid.serving.live_requests import LiveRequests


def test_a_free_id_is_the_engines_too() -> None:
    """While it runs it can be found; afterwards it is free again."""
    live = LiveRequests()
    for _ in range(2):
        with live.entered("a") as engine_id:
            assert engine_id == "a"
            assert live.engine_ids("a") == ("a",)
        assert live.engine_ids("a") == ()


def test_an_id_in_use_is_renamed() -> None:
    """All that run under it are found, and those alone."""
    live = LiveRequests()
    with live.entered("a") as first, live.entered("b"):
        with live.entered("a") as second:
            assert len({first, second, "b"}) == 3
            assert set(live.engine_ids("a")) == {first, second}
        assert live.engine_ids("a") == (first,)


def test_the_first_may_leave_before_the_second() -> None:
    """The one that stays is still found, and a third gets the free name."""
    live = LiveRequests()
    first = live.entered("a")
    first.__enter__()
    with live.entered("a") as second:
        first.__exit__(None, None, None)
        assert live.engine_ids("a") == (second,)
        with live.entered("a") as third:
            assert third == "a"
            assert set(live.engine_ids("a")) == {second, third}


def test_a_client_may_choose_a_name_that_was_given() -> None:
    """No name of ours is anybody's: whoever asks for it gets another."""
    live = LiveRequests()
    with live.entered("a"), live.entered("a") as renamed, live.entered(renamed) as own:
        assert own != renamed
        assert live.engine_ids(renamed) == (own,)
        assert len(live.engine_ids("a")) == 2


def test_a_name_that_a_client_chose_is_not_given() -> None:
    """Whatever a renamed request would be called, if that runs it is called else."""
    live = LiveRequests()
    with live.entered("a"), live.entered("a") as renamed:
        pass
    number = int(renamed.removeprefix("a#")) + 1
    chosen = f"a#{number}"
    with live.entered(chosen), live.entered("a"), live.entered("a") as given:
        assert given not in (chosen, "a")


def test_an_error_within_a_request_leaves_nothing() -> None:
    """However it ends, its id is free."""
    live = LiveRequests()

    def fail() -> None:
        with live.entered("a"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert live.engine_ids("a") == ()


def test_an_id_is_needed() -> None:
    """Without one it could not be aborted."""
    with pytest.raises(InvalidRequest, match="request_id"):
        LiveRequests().entered("").__enter__()


def test_a_long_id_is_renamed_within_the_engines_limit() -> None:
    """Two clients may choose the same name of 256 characters; none of 257."""
    live, longest = LiveRequests(), "a" * 256
    with live.entered(longest) as first, live.entered(longest) as second:
        check_request_id(second)
        assert set(live.engine_ids(longest)) == {first, second}
    with pytest.raises(InvalidRequest, match="257 characters, at most 256"):
        live.entered(longest + "a").__enter__()
