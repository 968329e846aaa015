"""Two threads at one ``LLM``: the second is told so, the first loses nothing."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybrid import LLM, RequestOutput, SamplingParams, UnsupportedFeature
from hybrid.scheduler import GenerateRequest
from hybrid.testing import check_whole, ids_of

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
HELD, OTHER = [7, 7, 7], [1, 2, 3]


class Gate:
    """A processor that changes nothing, and stops in the first draw of one prompt."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.may_pass = threading.Event()
        self.then: Callable[[], object] = lambda: None

    def applies_to(self, request: GenerateRequest) -> bool:
        """Meet one prompt alone."""
        return list(request.prompt_token_ids) == HELD

    def apply(
        self,
        request: GenerateRequest,
        sample_index: int,
        output_token_ids: Sequence[int],
        row: NDArray[np.float32],
    ) -> None:
        """Wait until it is opened, with an end, so that a fault is no hang."""
        del request, sample_index, output_token_ids, row
        self.is_reached.set()
        assert self.may_pass.wait(timeout=60), "nobody opened the gate"
        self.then()


@pytest.fixture
def gate() -> Gate:
    """A closed one."""
    return Gate()


@pytest.fixture
def llm(gate: Gate) -> Iterator[LLM]:
    """Without a model; steps of the prompt ``HELD`` stop at the gate."""
    with LLM(executor="null", logits_processors=[gate], num_kv_blocks=64) as llm:
        yield llm


@pytest.fixture
def held(llm: LLM, gate: Gate) -> Iterator[Future[list[RequestOutput]]]:
    """Another thread in the middle of a step."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(llm.generate, HELD, PARAMS, use_tqdm=False)
        try:
            assert gate.is_reached.wait(timeout=60)
            yield running
        finally:
            gate.may_pass.set()


def _alone(prompt: list[int]) -> list[list[int]]:
    with LLM(executor="null", num_kv_blocks=64) as llm:
        return ids_of(llm.generate(prompt, PARAMS, use_tqdm=False))


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate(OTHER, PARAMS, use_tqdm=False),
        lambda llm: llm.stream(OTHER, PARAMS),
        lambda llm: llm.close(),
    ],
    ids=["generate", "stream", "close"],
)
def test_a_second_thread_is_refused_at_once(
    llm: LLM,
    gate: Gate,
    held: Future[list[RequestOutput]],
    call: Callable[[LLM], Any],
) -> None:
    """By every call; the first one's answer is what it is alone."""
    with pytest.raises(UnsupportedFeature, match=r"another thread.*AsyncHybridEngine"):
        call(llm)
    gate.may_pass.set()
    assert ids_of(held.result(timeout=60)) == _alone(HELD)
    check_whole(llm.llm_engine)
    assert ids_of(llm.generate(OTHER, PARAMS, use_tqdm=False)) == _alone(OTHER)


def test_a_stream_that_was_there_before_waits(llm: LLM, gate: Gate) -> None:
    """It is no newcomer: it goes on, whole, when the other thread is done."""
    stream = llm.stream(OTHER, PARAMS)
    next(stream)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(llm.generate, HELD, PARAMS, use_tqdm=False)
        assert gate.is_reached.wait(timeout=60)
        rest = pool.submit(list, stream)
        gate.may_pass.set()
        last = rest.result(timeout=60)[-1:]
        assert ids_of(running.result(timeout=60)) == _alone(HELD)
    assert ids_of(last) == _alone(OTHER)
    check_whole(llm.llm_engine)


def test_a_stream_can_be_left_while_another_thread_runs(llm: LLM, gate: Gate) -> None:
    """As the collector of garbage does, anywhere; whoever steps next aborts it."""
    stream: Any = llm.stream(OTHER, PARAMS)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(llm.generate, HELD, PARAMS, use_tqdm=False)
        assert gate.is_reached.wait(timeout=60)
        stream.close()
        gate.may_pass.set()
        assert ids_of(running.result(timeout=60)) == _alone(HELD)
    check_whole(llm.llm_engine)


def test_a_call_within_a_call_is_refused(llm: LLM, gate: Gate) -> None:
    """From a processor of logits, say; neither breaks the step nor waits for itself."""
    stream = llm.stream(OTHER, PARAMS)
    next(stream)
    told = []

    def call_again() -> None:
        for call in (lambda: llm.generate(OTHER, use_tqdm=False), lambda: next(stream)):
            with pytest.raises(UnsupportedFeature) as refused:
                call()
            told.append(str(refused.value))
        gate.then = lambda: None

    gate.then = call_again
    gate.may_pass.set()
    assert ids_of(llm.generate(HELD, PARAMS, use_tqdm=False)) == _alone(HELD)
    assert len(told) == 2
    check_whole(llm.llm_engine)
