"""A compiled engine runs our plans over our pool, and gives transformers' logits."""

import gc
import json
import weakref
from contextlib import closing
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.trtllm.engine_runner import EngineRunner
from hybrid.scheduler.errors import CheckpointError, ExecutorFailed
from hybrid.scheduler.plan import StepPlan
from hybrid.testing.models import write_tiny_model
from tests.backends.engine_plans import (
    DECODE,
    FIRST,
    LONG,
    MIXED,
    SHORT,
    entry,
    plan_of,
)
from tests.backends.standin_engine import build_standin_engine
from tests.backends.standin_session import Seen
from tests.backends.trt_engine_stand import CONFIG, HERE, open_engine


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def weights(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A tiny model's Hugging Face directory."""
    folder = tmp_path_factory.mktemp("weights")
    return write_tiny_model(folder, request.param)


@torch.inference_mode()
def run(runner: EngineRunner, *plans: StepPlan) -> torch.Tensor:
    """Rows of logits of some steps, one after the other."""
    return torch.cat([runner.run(plan).clone() for plan in plans])


@torch.inference_mode()
def transformers_logits(weights: Path, *texts: tuple[int, ...]) -> torch.Tensor:
    """Logits of each text's last token, each text alone."""
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    return torch.cat([model(torch.tensor([text])).logits[0, -1:] for text in texts])


def test_steps_give_transformers_logits(
    weights: Path, tmp_path: Path, seen: Seen
) -> None:
    """A prompt in two chunks, the second beside a decode, then decodes alone."""
    with closing(open_engine(weights, tmp_path)) as runner:
        runner.make_pool(8)
        got = run(runner, FIRST, MIXED, DECODE)
    expected = transformers_logits(
        weights, SHORT, LONG, (*SHORT, 77), (*LONG, 201), (*SHORT, 77, 88)
    )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
    assert len(seen.sessions[0].steps) == 3
    assert seen.num_plugin_loads == 1


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("kind", "dtype", "limit"),
    [("FP8", torch.float8_e4m3fn, 0.3), ("INT8", torch.int8, 0.3)],
)
def test_an_8_bit_cache_is_a_pool_of_bytes(
    llama: Path, tmp_path: Path, kind: str, dtype: torch.dtype, limit: float
) -> None:
    """The engine keeps its scales; the steps' logits are off by its rounding alone."""
    runner = open_engine(llama, tmp_path, kv_cache_quant_algo=kind)
    with closing(runner):
        assert runner.make_pool(8).memory.dtype == dtype
        got = run(runner, FIRST, MIXED, DECODE)
    expected = transformers_logits(
        llama, SHORT, LONG, (*SHORT, 77), (*LONG, 201), (*SHORT, 77, 88)
    )
    error = (got - expected).norm(dim=1) / expected.norm(dim=1)
    assert 0 < error.max() < limit


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 1000}, "gives 320 logits a token.*vocab_size 1000"),
        ({"num_hidden_layers": 9}, "does not take what its config.json describes"),
    ],
)
def test_an_engine_that_is_not_what_its_config_says_is_refused_before_a_request(
    llama: Path, tmp_path: Path, change: dict[str, int], message: str
) -> None:
    """A step of one token is asked about, and not run."""
    build_standin_engine(llama, tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    content["pretrained_config"] |= change
    path.write_text(json.dumps(content))
    source = ModelSource("e", tmp_path, CheckpointFormat.COMPILED)
    with (
        closing(EngineRunner(source, CONFIG, HERE)) as runner,
        pytest.raises(CheckpointError, match=message),
    ):
        runner.make_pool(8)


@pytest.mark.usefixtures("seen")
def test_an_engine_with_all_logits_gives_any_rows(llama: Path, tmp_path: Path) -> None:
    """What prompt logprobs need: the last rows of a context, however many."""
    with closing(open_engine(llama, tmp_path, gather_context_logits=True)) as runner:
        assert runner.gives_every_row
        runner.make_pool(8)
        got = run(
            runner,
            plan_of(
                2,
                entry("long", LONG, LONG[:32], (1,), rows=2),
                entry("short", SHORT, SHORT, (2,), rows=3),
            ),
        )
    texts = (LONG[:31], LONG[:32], SHORT[:3], SHORT[:4], SHORT)
    expected = transformers_logits(llama, *texts)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("seen")
def test_the_pool_lives_as_long_as_its_address_is_used(
    llama: Path, tmp_path: Path
) -> None:
    """The engine has an address only, so the runner holds the memory."""
    with closing(open_engine(llama, tmp_path)) as runner:
        memory = weakref.ref(runner.make_pool(8).memory)
        gc.collect()
        assert memory() is not None


@pytest.mark.usefixtures("seen")
def test_an_engine_without_says_that_it_has_last_rows_only(
    llama: Path, tmp_path: Path
) -> None:
    """So that a request for prompt logprobs is refused before it runs."""
    with closing(open_engine(llama, tmp_path)) as runner:
        assert not runner.gives_every_row


@pytest.mark.usefixtures("seen")
def test_a_step_may_want_no_rows(llama: Path, tmp_path: Path) -> None:
    """Chunks that are not the last alone: nothing is drawn from them."""
    with closing(open_engine(llama, tmp_path)) as runner:
        runner.make_pool(8)
        assert run(runner, plan_of(1, FIRST.scheduled[0])).shape == (0, 320)


def test_a_padded_head_is_cut_to_the_vocabulary(
    llama: Path, tmp_path: Path, seen: Seen
) -> None:
    """Columns beyond the vocabulary are no tokens, whatever their logits."""
    with closing(open_engine(llama, tmp_path)) as runner:
        runner.make_pool(8)
        whole = run(runner, FIRST)
    with closing(open_engine(llama, tmp_path)) as runner:
        pad_head(seen, num_columns=384)
        runner.make_pool(8)
        assert torch.equal(run(runner, FIRST), whole)


def pad_head(seen: Seen, *, num_columns: int) -> None:
    """Make the engine that was opened last give more columns than there are ids."""
    session = seen.sessions[-1]
    mode, dtype, (tokens, _) = session.engine.tensors["logits"]
    session.engine.tensors["logits"] = (mode, dtype, (tokens, (num_columns,) * 2))
    head = session.model.get_output_embeddings()
    padding = torch.full((num_columns - len(head.weight), head.weight.shape[1]), 9.0)
    head.weight = torch.nn.Parameter(torch.cat([head.weight, padding]))


@pytest.mark.usefixtures("seen")
def test_what_was_compiled_in_is_told(llama: Path, tmp_path: Path) -> None:
    """Sizes of the model and of its cache, from config.json."""
    config = ExecutorConfig(dtype="float16", block_size=16, max_num_seqs=4)
    with closing(
        open_engine(
            llama,
            tmp_path,
            config,
            dtype="float16",
            tokens_per_block=16,
            kv_cache_quant_algo="FP8",
            max_seq_len=200,
            max_num_tokens=100,
        )
    ) as runner:
        info, cache = runner.info, runner.cache
        layout = runner.make_pool(5).layout
    assert info.architecture == "LlamaForCausalLM"
    assert (info.vocab_size, info.max_model_len) == (320, 200)
    assert info.max_num_batched_tokens == 100
    assert (cache.num_layers, cache.num_kv_heads, cache.head_dim) == (3, 2, 16)
    assert cache.dtype == "float8_e4m3fn"
    assert (layout.block_size, layout.dtype) == (16, "float8_e4m3fn")


@pytest.mark.usefixtures("seen")
def test_an_8_bit_cache_holds_8_bit_numbers(llama: Path, tmp_path: Path) -> None:
    """The engine writes them into our pool, and its answers are near the exact ones."""
    with closing(open_engine(llama, tmp_path, kv_cache_quant_algo="FP8")) as runner:
        pool = runner.make_pool(8)
        got = run(runner, FIRST, MIXED)
    written = pool.by_block[6, :, :, :, :5].float()
    assert written.abs().amin(dim=-1).count_nonzero()
    assert not pool.by_block[2].float().any(), "a block that nobody owns"
    expected = transformers_logits(llama, SHORT, LONG, (*SHORT, 77))
    difference = (got - expected).abs().max()
    assert 0 < difference < expected.abs().max() / 4


def test_closing_frees_the_engine(llama: Path, tmp_path: Path, seen: Seen) -> None:
    """Its weights and its workspace are the GPU's largest things; twice is no error."""
    runner = open_engine(llama, tmp_path)
    runner.make_pool(8)
    session = weakref.ref(seen.sessions.pop())
    runner.close()
    runner.close()
    gc.collect()
    assert session() is None


def test_a_step_outside_the_builds_limits_ends_the_executor(
    llama: Path, tmp_path: Path, seen: Seen
) -> None:
    """TensorRT's own words, where a shape is not what config.json promised."""
    with closing(open_engine(llama, tmp_path)) as runner:
        runner.make_pool(8)
        seen.sessions[0].engine.tensors["input_ids"] = (
            *seen.sessions[0].engine.tensors["input_ids"][:2],
            ((1, 4),),
        )
        with pytest.raises(ExecutorFailed, match="Could not set shape"):
            run(runner, FIRST)


def test_a_step_that_is_not_enqueued_ends_the_executor(
    llama: Path, tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT says so by a False, which must not become an answer."""
    with closing(open_engine(llama, tmp_path)) as runner:
        runner.make_pool(8)
        monkeypatch.setattr(seen.sessions[0], "run", lambda *_: False)
        with pytest.raises(ExecutorFailed, match="could not enqueue"):
            run(runner, FIRST)
