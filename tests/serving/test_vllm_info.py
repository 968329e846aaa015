"""What the service tells of itself: health, model, server, load, tokenizer."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb

import hybrid
from hybrid import SamplingParams
from hybrid.scheduler import StepPlan
from hybrid.serving.prompt_load import PromptLoad
from hybrid.serving.served_model import ServedModel
from hybrid.serving.vllm_info import loads, model_info
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.hybrid.cli_stand import write_tiny_model
from tests.hybrid.null_stand import FaultyExecutor, HeldExecutor, make_engine
from tests.serving.service_stand import (
    Served,
    generate,
    load_tiny,
    model_of,
    refusal,
    request,
    serve,
    until,
)

PROMPT = [1, 2, 3, 4, 5]


async def health(served: Served) -> tuple[bool, str]:
    """What HealthCheck says."""
    answer = await served.stub.HealthCheck(pb.HealthCheckRequest())
    return answer.healthy, answer.message


def test_health_is_answered_while_the_engine_computes() -> None:
    """A step that does not end keeps nobody from asking; draining is not healthy."""
    executor = HeldExecutor(num_free_steps=0)
    engine = make_engine(executor=executor)

    async def body(served: Served) -> list[tuple[bool, str]]:
        running = asyncio.create_task(generate(served, request(PROMPT)))
        await until(lambda: engine.stats().num_requests_running == 1)
        answers = [await health(served)]
        served.host.begin_drain()
        answers.append(await health(served))
        executor.let_go()
        await running
        return answers

    assert serve(engine, body) == [(True, "ready"), (False, "draining")]


def test_health_says_that_the_engine_has_ended() -> None:
    """An executor that died is not healthy."""

    def fault(_: StepPlan) -> None:
        raise RuntimeError("device lost")

    async def body(served: Served) -> tuple[bool, str]:
        await refusal(served.stub.Generate(request(PROMPT)))
        return await health(served)

    assert serve(make_engine(executor=FaultyExecutor(fault)), body) == (False, "failed")


def info_of(folder: Path, **options: Any) -> Any:
    """GetModelInfo of a tiny model."""
    loaded = load_tiny(folder, **options)

    async def body(served: Served) -> Any:
        return await served.stub.GetModelInfo(pb.GetModelInfoRequest())

    return serve(loaded.engine, body, ServedModel.of(loaded, name="tiny"))


def test_the_model_is_described(tmp_path: Path) -> None:
    """Name, directory, limits and ids are those of the model's own files."""
    info = info_of(tmp_path, max_model_len=100)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert info.served_model_name == "tiny"
    assert info.model_path == info.tokenizer_path == str(tmp_path)
    assert info.is_generation
    assert not info.supports_vision
    assert info.max_context_length == 100
    assert info.max_req_input_len == 99
    assert info.vocab_size == config["vocab_size"]
    assert info.model_type == config["model_type"]
    assert list(info.architectures) == ["null"]
    assert info.pad_token_id == 0
    assert list(info.eos_token_ids) == sorted(tokenizer.eos_token_ids)
    assert info.bos_token_id == tokenizer.bos_token_id
    assert info.default_sampling_params_json == ""


@pytest.mark.parametrize(
    ("entries", "architectures", "pad_token_id"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, ["LlamaForCausalLM"], 0),
        ({"architectures": None, "pad_token_id": 7}, ["null"], 7),
        ({"architectures": "x", "pad_token_id": None}, ["null"], 0),
        ({"architectures": [1], "pad_token_id": -1}, ["null"], 0),
        ({"pad_token_id": 2**40}, ["null"], 0),
    ],
)
def test_a_config_may_hold_anything(
    tmp_path: Path, entries: Any, architectures: list[str], pad_token_id: int
) -> None:
    """What is of the wrong kind is as good as absent."""
    model = model_of(
        make_engine(), path=write_tiny_model(tmp_path), architecture="null"
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | entries))
    info = model_info(model)
    assert list(info.architectures) == architectures
    assert info.pad_token_id == pad_token_id


def test_a_models_own_sampling_is_told_to_gateways(tmp_path: Path) -> None:
    """Of generation_config.json what a gateway may fill in, and nothing else."""
    write_tiny_model(tmp_path)
    wishes = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(wishes))
    told = json.loads(info_of(tmp_path).default_sampling_params_json)
    assert told == {"temperature": 0.6, "top_p": 0.9}


def test_an_engine_without_a_model_is_served_by_its_name() -> None:
    """No path is made up: a gateway would look for it."""

    async def body(served: Served) -> Any:
        return await served.stub.GetModelInfo(pb.GetModelInfoRequest())

    info = serve(make_engine(), body)
    assert (info.model_path, info.tokenizer_path) == ("tiny", "")


def test_the_server_is_described() -> None:
    """It names the protocol, its limits, and what is in it now."""
    executor = HeldExecutor()
    engine = make_engine(executor=executor)

    async def body(served: Served) -> tuple[Any, Any]:
        before = await served.stub.GetServerInfo(pb.GetServerInfoRequest())
        running = asyncio.create_task(generate(served, request(PROMPT)))
        await until(lambda: engine.stats().generation_tokens_total == 1)
        during = await served.stub.GetServerInfo(pb.GetServerInfoRequest())
        executor.let_go()
        await running
        return before, during

    before, during = serve(engine, body)
    assert before.server_type == "vllm-grpc"
    assert before.data_parallel_size == 1
    assert before.block_size == 4
    assert before.max_num_seqs == 8
    assert before.constrained_decoding_start == "first_token"
    assert not before.is_paused
    assert (before.active_requests, during.active_requests) == (0, 1)
    assert before.last_receive_timestamp == 0
    assert during.last_receive_timestamp > 0
    assert 0 < before.uptime_seconds <= during.uptime_seconds


def test_the_load_is_that_of_the_engine() -> None:
    """Running and waiting requests, and how much of the pool they hold."""
    engine = make_engine(num_blocks=32, max_num_seqs=1)
    for number in range(3):
        params = SamplingParams(temperature=0, max_tokens=8)
        engine.add_request(str(number), list(range(1, 14)), params)
    engine.step()
    prompts = PromptLoad()
    for number in range(3):
        prompts.came(str(number), 13)
    answer = loads(engine.stats(), prompts, 1, 2.5)
    assert datetime.fromisoformat(answer.timestamp).tzinfo is not None
    assert answer.version == hybrid.__version__
    assert answer.dp_rank_count == len(answer.loads) == 1
    (load,) = answer.loads
    assert (load.num_running_reqs, load.num_waiting_reqs) == (1, 2)
    assert load.num_total_reqs == 3
    assert load.num_used_tokens == 13
    assert load.max_total_num_tokens == 128
    assert load.token_usage == pytest.approx(4 / 32)
    assert load.max_running_requests == 1
    assert load.gen_throughput == 2.5
    assert load.cache_hit_rate == 0.0
    assert load.num_waiting_uncached_tokens == 2 * 13
    while engine.has_unfinished_requests():
        for output in engine.step():
            prompts.progressed(output)
    (load,) = loads(engine.stats(), prompts, 1, 0.0).loads
    assert (load.num_total_reqs, load.token_usage) == (0, 0.0)
    assert load.cache_hit_rate == pytest.approx(2 * 12 / (3 * 13))
    assert load.num_waiting_uncached_tokens == 0


def test_the_load_is_told_over_the_wire() -> None:
    """Whatever sections and rank a client asks for: there is one of each."""

    async def body(served: Served) -> Any:
        asked = pb.GetLoadsRequest(dp_rank=1, include=["memory"])
        return await served.stub.GetLoads(asked)

    (load,) = serve(make_engine(), body).loads
    assert load.dp_rank == 0
    assert load.max_total_num_tokens == 128
    assert load.max_running_requests == 8


def test_nothing_is_embedded_here() -> None:
    """UNIMPLEMENTED, with the reason."""

    async def body(served: Served) -> grpc.aio.AioRpcError:
        return await refusal(served.stub.Embed(pb.EmbedRequest()))

    status = serve(make_engine(), body)
    assert status.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "no embeddings" in str(status.details())
