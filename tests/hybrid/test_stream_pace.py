"""What streams gather, and when they are let have it."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid import FinishReason, RequestOutput, SamplingParams
from hybrid.scheduler import EngineClosed
from hybrid.stream_pace import AUTO_MIN_STREAMS, StreamPace, auto_interval_s
from tests.hybrid.pace_stand import (
    TurnedClock,
    begun,
    outputs_of,
    paced,
    read,
    read_after,
)

INTERVAL_S = 0.05
AUTO_S = auto_interval_s(AUTO_MIN_STREAMS)


def test_first_and_last_tokens_are_read_at_once() -> None:
    """What comes between is gathered, and comes with the last."""

    async def body(pace: StreamPace, _: TurnedClock) -> list[int | None]:
        mailbox = begun()
        return [await read_after(pace, mailbox, output) for output in outputs_of()]

    assert paced(INTERVAL_S, body) == [1, *[None] * 10, 12]


def test_a_step_after_the_interval_lets_go_what_was_gathered() -> None:
    """Steps of a third of it: every third brings three tokens, and no timer is due."""

    async def body(pace: StreamPace, clock: TurnedClock) -> list[int | None]:
        mailbox, told = begun(), []
        for output in outputs_of():
            told.append(await read_after(pace, mailbox, output))
            is_held = told[-1] is None
            assert len(clock.armed) == is_held or output.finished
            clock.turn(INTERVAL_S / 3 + 1e-9)
        return told

    expected = [1, None, None, 4, None, None, 7, None, None, 10, None, 12]
    assert paced(INTERVAL_S, body) == expected


def test_a_stream_that_gets_no_more_is_woken_by_the_one_timer() -> None:
    """No token waits longer than the interval, though no step follows."""

    async def body(pace: StreamPace, clock: TurnedClock) -> None:
        mailboxes, outputs = [begun() for _ in range(3)], list(outputs_of())
        for output in outputs[:3]:
            pace.deliver([(mailbox, output) for mailbox in mailboxes])
            assert [await read(each) for each in mailboxes] in ([1] * 3, [None] * 3)
        (timer,) = clock.armed
        assert timer.when() == clock.now_s + INTERVAL_S
        clock.turn(INTERVAL_S)
        assert [await read(mailbox) for mailbox in mailboxes] == [3] * 3
        assert clock.armed == []
        more = await read_after(pace, mailboxes[0], outputs[3])
        assert more is None, "the timer began a new interval"

    paced(INTERVAL_S, body)


def test_a_reader_that_waits_already_is_woken_as_well() -> None:
    """It gets all that was gathered as one output."""

    async def body(pace: StreamPace, clock: TurnedClock) -> int:
        mailbox, outputs = begun(), list(outputs_of())
        assert await read_after(pace, mailbox, outputs[0]) == 1
        waiting = asyncio.create_task(mailbox.get())
        for output in outputs[1:5]:
            await asyncio.sleep(0)
            pace.deliver([(mailbox, output)])
        assert not waiting.done()
        clock.turn(INTERVAL_S)
        output = await asyncio.wait_for(waiting, 60)
        return len(output.outputs[0].token_ids)

    assert paced(INTERVAL_S, body) == 5


@pytest.mark.parametrize(
    ("num_streams", "interval_s", "is_held"),
    [
        (AUTO_MIN_STREAMS - 1, None, False),
        (AUTO_MIN_STREAMS, None, True),
        (AUTO_MIN_STREAMS, 0.0, False),
        (1, 1e-9, True),
    ],
)
def test_streams_are_held_as_they_are_many_or_as_was_asked(
    num_streams: int, interval_s: float | None, is_held: bool
) -> None:
    """A few get each token at once unless a time is given; 0 never gathers."""

    async def body(pace: StreamPace, clock: TurnedClock) -> set[int | None]:
        mailboxes, outputs = [begun() for _ in range(num_streams)], list(outputs_of())
        for output in outputs[:2]:
            pace.deliver([(mailbox, output) for mailbox in mailboxes])
            told = {await read(mailbox) for mailbox in mailboxes}
        waits = [timer.when() - clock.now_s for timer in clock.armed]
        expected = AUTO_S if interval_s is None else interval_s
        assert waits == ([pytest.approx(expected, abs=1e-6)] if is_held else [])
        return told

    assert paced(interval_s, body) == ({None} if is_held else {2})


@pytest.mark.parametrize(
    ("num_streams", "interval_s"),
    [(1, 0.0), (7, 0.0), (8, 0.05), (16, 0.05), (24, 0.075), (32, 0.1), (500, 0.1)],
)
def test_more_streams_gather_for_longer(num_streams: int, interval_s: float) -> None:
    """So many messages a second are sent, within bounds that a reader does not mind."""
    assert auto_interval_s(num_streams) == interval_s


def test_every_sample_begins_and_ends_at_once() -> None:
    """What comes between is gathered until another one ends."""
    params = SamplingParams(n=3, seed=5, max_tokens=10, stop_token_ids=[*range(9)])

    async def body(pace: StreamPace, _: TurnedClock) -> tuple[int, int]:
        mailbox, before, num_turns, num_held = begun(), None, 0, 0
        for output in outputs_of(params):
            reasons = [sample.finish_reason for sample in output.outputs]
            is_held = await read_after(pace, mailbox, output) is None
            assert is_held == (reasons == before)
            before = reasons
            num_turns += not is_held
            num_held += is_held
        return num_turns, num_held

    num_turns, num_held = paced(INTERVAL_S, body)
    assert num_turns > 2, "all have ended in one step"
    assert num_held > 0, "nothing could be gathered"


def test_an_abort_brings_what_was_gathered() -> None:
    """At once, and as the last output; the timer finds nothing more to do."""

    async def body(pace: StreamPace, clock: TurnedClock) -> RequestOutput:
        mailbox, outputs = begun(), list(outputs_of())
        assert await read_after(pace, mailbox, outputs[0]) == 1
        for output in outputs[1:4]:
            assert await read_after(pace, mailbox, output) is None
        mailbox.abort()
        last = await asyncio.wait_for(mailbox.get(), 60)
        clock.turn(INTERVAL_S)
        assert await read(mailbox) is None
        return last

    last = paced(INTERVAL_S, body)
    assert last.finished
    assert last.outputs[0].finish_reason is FinishReason.ABORT
    assert len(last.outputs[0].token_ids) == 4


def test_an_error_lets_what_was_gathered_be_read_before_it() -> None:
    """Nothing that was made is lost when the engine ends."""

    async def body(pace: StreamPace, _: TurnedClock) -> None:
        mailbox, outputs = begun(), list(outputs_of())
        assert await read_after(pace, mailbox, outputs[0]) == 1
        for output in outputs[1:4]:
            assert await read_after(pace, mailbox, output) is None
        mailbox.fail(EngineClosed("the end"))
        assert await read(mailbox) == 4
        with pytest.raises(EngineClosed, match="the end"):
            await mailbox.get()

    paced(INTERVAL_S, body)


def test_a_request_that_does_not_stream_has_two_outputs() -> None:
    """Its first token, which is a time that is measured, and its whole answer."""

    async def body(pace: StreamPace, clock: TurnedClock) -> list[int | None]:
        mailbox, told = begun(stream=False), []
        for output in outputs_of():
            told.append(await read_after(pace, mailbox, output))
            clock.turn(INTERVAL_S)
        assert clock.timers == []
        return told

    assert paced(0.0, body) == [1, *[None] * 10, 12]


@settings(deadline=None, max_examples=60)
@given(
    interval_s=st.sampled_from([None, 0.0, 0.01, 1.0]),
    # Of each step: how long until the next, and which of the streams are read then.
    steps=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.004, 0.02, 2.0]),
            st.sets(st.integers(0, AUTO_MIN_STREAMS - 1)),
        ),
        min_size=12,
        max_size=12,
    ),
)
def test_gathered_or_not_a_stream_grows_to_the_whole_answer(
    interval_s: float | None, steps: list[tuple[float, set[int]]]
) -> None:
    """Nobody misses the end, and nothing is held back beyond the interval."""
    most_s = AUTO_S if interval_s is None else interval_s

    async def body(pace: StreamPace, clock: TurnedClock) -> list[list[int]]:
        mailboxes = [begun() for _ in range(AUTO_MIN_STREAMS)]
        told: list[list[int]] = [[0] for _ in mailboxes]
        for output, (seconds, readers) in zip(outputs_of(), steps, strict=True):
            pace.deliver([(mailbox, output) for mailbox in mailboxes])
            clock.turn(seconds)
            num_tokens = len(output.outputs[0].token_ids)
            for reader in readers:
                found = await read(mailboxes[reader])
                told[reader] += [] if found is None else [found]
                if seconds > most_s or output.finished:
                    assert told[reader][-1] == num_tokens
        for mailbox, lengths in zip(mailboxes, told, strict=True):
            if lengths[-1] < 12:
                lengths.append((await mailbox.get()).metrics.num_output_tokens)
        return told

    for lengths in paced(interval_s, body):
        assert lengths == sorted(set(lengths))
        assert lengths[-1] == 12
