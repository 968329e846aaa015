"""Prompts run through an engine to their ends, the pool checked afterwards."""

from collections.abc import Sequence
from uuid import uuid4

from hybrid.engine import HybridEngine
from hybrid.outputs import RequestOutput
from hybrid.prompt import Prompt
from hybrid.scheduler import SamplingParams


def run(
    engine: HybridEngine,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams],
) -> list[RequestOutput]:
    """Run prompts together to the end; the pool must be whole afterwards."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    ids = fresh_ids(len(prompts))
    for request_id, prompt, its_params in zip(ids, prompts, each, strict=True):
        engine.add_request(request_id, prompt, its_params, stream=False)
    done = finish(engine)
    return [done[request_id] for request_id in ids]


def fresh_ids(num_requests: int) -> list[str]:
    """Request ids that never came before.

    Engines that take turns over one executor must not reuse any: it may know them yet.
    """
    return [f"{index}-{uuid4()}" for index in range(num_requests)]


def finish(engine: HybridEngine) -> dict[str, RequestOutput]:
    """Step until nothing is left: the last outputs by request id."""
    done: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step()}
    check_whole(engine)
    return done


def check_whole(engine: HybridEngine) -> None:
    """Assert that no request is left, no block is owned, every invariant holds."""
    engine.scheduler.check_integrity()
    stats = engine.scheduler.stats()
    assert stats.num_running == stats.num_waiting == 0, f"requests are left: {stats}"
    assert stats.num_free_blocks == stats.num_total_blocks, f"blocks are lost: {stats}"
    assert not engine.has_unfinished_requests()


def ids_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """The first sample's token ids of each output."""
    return [list(output.outputs[0].token_ids) for output in outputs]
