"""The stand-in for FlashInfer refuses what the kernels would misread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import pytest
import torch

from tests.backends.flashinfer_signatures import SIGNATURES
from tests.backends.standin_flashinfer import installed

HOPPER, BLACKWELL = (9, 0), (10, 0)
MIB = 2**20
Change = Callable[[dict[str, Any]], None]


def pool(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """``[blocks, layers, 2, heads, tokens, dims]``, one layer."""
    return torch.ones(4, 1, 2, 2, 16, 64).to(dtype)


def decode_call() -> dict[str, Any]:
    """Two generations, all that is right."""
    cells = pool()
    return {
        "query": torch.ones(2, 4, 64, dtype=torch.bfloat16),
        "kv_cache": (cells[:, 0, 0], cells[:, 0, 1]),
        "workspace_buffer": torch.zeros(128 * MIB, dtype=torch.uint8),
        "block_tables": torch.tensor([[1, 2], [3, 0]], dtype=torch.int32),
        "seq_lens": torch.tensor([17, 3], dtype=torch.int32),
        "max_seq_len": 32,
        "bmm1_scale": 0.125,
        "bmm2_scale": 1.0,
        "out": torch.zeros(2, 4, 64, dtype=torch.bfloat16),
    }


def prefill_call() -> dict[str, Any]:
    """One chunk of three tokens after fourteen: FMHA v2's form."""
    return {
        "qkv": (torch.ones(3, 4, 64, dtype=torch.bfloat16), pool().flatten(0, 1)),
        "input_layout": "Q_PAGED_KV_HND",
        "workspace_buffer": torch.zeros(128 * MIB, dtype=torch.uint8),
        "seq_lens": torch.tensor([17], dtype=torch.int32),
        "max_q_len": 3,
        "max_kv_len": 17,
        "bmm1_scale": 0.125,
        "bmm2_scale": 1.0,
        "batch_size": 1,
        "cum_seq_lens_q": torch.tensor([0, 3], dtype=torch.int32),
        "cum_seq_lens_kv": torch.tensor([0, 17], dtype=torch.int32),
        "block_tables": torch.tensor([[1, 2]], dtype=torch.int32),
        "out": torch.zeros(3, 4, 64, dtype=torch.bfloat16),
    }


@contextmanager
def functions(capability: tuple[int, int] = HOPPER) -> Iterator[tuple[Any, Any]]:
    """The modules ``flashinfer.decode`` and ``flashinfer.prefill``."""
    with installed(capability):
        yield import_module("flashinfer.decode"), import_module("flashinfer.prefill")


def put(name: str, value: Callable[[Any], Any]) -> Change:
    """Change one argument by a function of what it was."""

    def change(given: dict[str, Any]) -> None:
        given[name] = value(given[name])

    return change


def transposed(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """V token-major, K as it was."""
    return pair[0], pair[1].transpose(1, 2).contiguous().transpose(1, 2)


def dirty(workspace: torch.Tensor) -> torch.Tensor:
    """A semaphore that is not zero."""
    workspace[100] = 1
    return workspace


def test_right_calls_are_answered() -> None:
    """All V are ones, so every weighted mean is."""
    with functions() as (decode, prefill):
        given = decode_call()
        decode.trtllm_batch_decode_with_kv_cache(**given)
        assert torch.equal(given["out"], torch.ones_like(given["out"]))
        given = prefill_call()
        prefill.trtllm_fmha_v2_prefill(**given)
        assert torch.equal(given["out"], torch.ones_like(given["out"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("query", lambda q: q.float()), "query is torch.float32"),
        (put("query", lambda q: torch.cat([q, q], 2)[..., :64]), "not contiguous"),
        (put("out", lambda _: None), "out is made anew"),
        (put("out", lambda out: out[:1]), "out has shape"),
        (put("out", torch.Tensor.half), "out is torch.float16"),
        (put("kv_cache", transposed), "different strides"),
        (put("kv_cache", lambda kv: (kv[0], kv[1][:3])), "different shapes"),
        (put("kv_cache", lambda kv: (kv[0].half(), kv[1].half())), "cache is"),
        (put("block_tables", torch.Tensor.long), "block_tables is torch.int64"),
        (put("block_tables", lambda t: t + 1), "outside the 4 pages"),
        (put("block_tables", lambda t: t - 1), "outside the 4 pages"),
        (put("block_tables", lambda t: t[:, :1]), "not contiguous"),
        (put("block_tables", lambda t: t[:1]), "1 rows"),
        (put("seq_lens", torch.Tensor.long), "seq_lens is torch.int64"),
        (put("seq_lens", lambda lens: lens[:1]), "seq_lens has shape"),
        (put("seq_lens", lambda lens: lens * 0), "has no token"),
        (put("max_seq_len", lambda _: 16), "announced 16 tokens"),
        (put("bmm1_scale", lambda _: torch.ones(1)), "a scale is no float"),
        (put("workspace_buffer", lambda w: w[: 64 * MIB]), "has 67108864 bytes"),
        (put("workspace_buffer", torch.Tensor.int), "it is torch.int32"),
        (put("workspace_buffer", dirty), "semaphores are not zero"),
        (lambda given: given.update(kv_layout="NHD"), "HND only"),
        (lambda given: given.update(backend="cake"), "does not know backend"),
    ],
)
def test_a_wrong_decode_call_is_refused(change: Change, message: str) -> None:
    """Each by what is wrong with it."""
    given = decode_call()
    change(given)
    with functions() as (decode, _), pytest.raises(ValueError, match=message):
        decode.trtllm_batch_decode_with_kv_cache(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("qkv", lambda qkv: (qkv[0], qkv[1][:, 0])), "paged_KV has shape"),
        (put("qkv", lambda qkv: (qkv[0], qkv[1].mT)), "strides from shapes"),
        (put("qkv", lambda qkv: (qkv[0].half(), qkv[1])), "the cache is"),
        (put("cum_seq_lens_q", lambda s: s + 1), "begins with 1"),
        (put("cum_seq_lens_q", lambda s: s - torch.tensor([0, 1]).int()), "ends with"),
        (put("cum_seq_lens_q", torch.Tensor.long), "cum_seq_lens_q is torch.int64"),
        (put("cum_seq_lens_kv", lambda s: s * 2), "no sums of seq_lens"),
        (put("max_q_len", lambda _: 2), "longer than max_q_len"),
        (put("max_kv_len", lambda _: 16), "announced 16 tokens"),
        (put("batch_size", lambda _: 2), "1 rows"),
        (put("input_layout", lambda _: "Q_PAGED_KV_NHD"), "reads HND"),
        (lambda given: given.update(mask_mode="padding"), "mask_mode is padding"),
    ],
)
def test_a_wrong_prefill_call_is_refused(change: Change, message: str) -> None:
    """Each by what is wrong with it."""
    given = prefill_call()
    change(given)
    with functions() as (_, prefill), pytest.raises(ValueError, match=message):
        prefill.trtllm_fmha_v2_prefill(**given)


def test_kernels_of_another_gpu_are_refused() -> None:
    """FMHA v2 on a data-centre Blackwell; head sizes that only Hopper has."""
    with functions(BLACKWELL) as (decode, prefill):
        with pytest.raises(ValueError, match="SM90 and SM12x only"):
            prefill.trtllm_fmha_v2_prefill(**prefill_call())
        given = decode_call()
        cells = torch.ones(4, 2, 2, 16, 96, dtype=torch.bfloat16)
        given |= {
            "query": torch.ones(2, 4, 96, dtype=torch.bfloat16),
            "out": torch.ones(2, 4, 96, dtype=torch.bfloat16),
            "kv_cache": (cells[:, 0], cells[:, 1]),
        }
        with pytest.raises(ValueError, match="trtllm-gen: head size 96"):
            decode.trtllm_batch_decode_with_kv_cache(**given)


def test_prefill_leaves_no_semaphores_to_xqa() -> None:
    """One workspace for both is what the kernels cannot have."""
    with functions() as (decode, prefill):
        first, second = prefill_call(), decode_call()
        second["workspace_buffer"] = first["workspace_buffer"]
        prefill.trtllm_fmha_v2_prefill(**first)
        with pytest.raises(ValueError, match="semaphores are not zero"):
            decode.trtllm_batch_decode_with_kv_cache(**second)


def test_an_unknown_argument_is_refused() -> None:
    """By the signature, as Python does."""
    with functions() as (decode, _), pytest.raises(TypeError, match="kv_sf"):
        decode.trtllm_batch_decode_with_kv_cache(**decode_call(), kv_sf=None)


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_signatures_are_those_of_the_package(name: str) -> None:
    """Where FlashInfer is installed: it takes what the stand-in takes, alike."""
    pytest.importorskip("flashinfer")
    module, _, function = name.rpartition(".")
    real = signature(getattr(import_module(module), function)).parameters
    for parameter in SIGNATURES[name].parameters.values():
        if parameter.name in real:
            assert real[parameter.name].default == parameter.default
        else:
            assert parameter.default is not Parameter.empty
