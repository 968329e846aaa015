"""A stand-in for FlashInfer's TensorRT-LLM kernels: their checks, no GPU.

    with installed((9, 0)):
        ...  # import flashinfer.decode finds the stand-in of a Hopper GPU

Where a kernel ignores strides, the stand-in does: it reads the raw memory as the kernel
would, so that what only looks right to torch comes out wrong.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from tests.backends import standin_flashinfer_checks as checks
from tests.backends.flashinfer_signatures import SIGNATURES
from tests.backends.standin_flashinfer_checks import FP8, require

NAMES = (
    "flashinfer",
    "flashinfer.decode",
    "flashinfer.prefill",
)


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """A call, whichever function it came to."""

    queries: torch.Tensor
    out: torch.Tensor
    keys: torch.Tensor
    """``[pages, heads, tokens, dims]``."""
    values: torch.Tensor
    tables: torch.Tensor
    kv_lens: list[int]
    query_starts: list[int]
    window_left: int
    """-1: all."""
    score_scale: float
    value_scale: float

    def attend(self) -> None:
        """Compute each sequence by itself in float64, causally from its end."""
        for seq, kv_len in enumerate(self.kv_lens):
            rows = slice(self.query_starts[seq], self.query_starts[seq + 1])
            queries = self.queries[rows].double().transpose(0, 1)
            keys = self._gather(self.keys, seq, kv_len)
            values = self._gather(self.values, seq, kv_len)
            group = len(queries) // len(keys)
            keys, values = (one.repeat_interleave(group, 0) for one in (keys, values))
            scores = queries @ keys.transpose(1, 2) * self.score_scale
            at = torch.arange(kv_len - queries.shape[1], kv_len)[:, None]
            back = at - torch.arange(kv_len)
            is_seen = back >= 0
            if self.window_left >= 0:
                is_seen &= back <= self.window_left
            weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
            found = (weights @ values * self.value_scale).transpose(0, 1)
            self.out[rows] = found.to(self.out.dtype)

    def _gather(self, pages: torch.Tensor, seq: int, kv_len: int) -> torch.Tensor:
        num_pages = -(-kv_len // pages.shape[2])
        bits = pages.view(torch.uint8) if pages.dtype == FP8 else pages
        found = bits[self.tables[seq, :num_pages].long()].view(pages.dtype)
        return found.double().transpose(0, 1).flatten(1, 2)[:, :kv_len]


class StandIn:
    """The kernels of one GPU."""

    def __init__(
        self, capability: tuple[int, int], *, allows_float32: bool = False
    ) -> None:
        self.capability = capability
        self.floats = {torch.float16, torch.bfloat16}
        if allows_float32:
            self.floats.add(torch.float32)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """Names and arguments, defaults filled in."""

    def decode(self, given: dict[str, Any]) -> None:
        """``trtllm_batch_decode_with_kv_cache``: XQA or trtllm-gen, one token each."""
        is_xqa = self.capability[0] != 10
        queries, tables = given["query"], given["block_tables"]
        self._check_call(given, queries, *given["kv_cache"])
        keys, values = given["kv_cache"]
        tokens = keys.shape[2]
        if is_xqa:
            require(tokens in {16, 32, 64, 128}, f"XQA: {tokens} tokens a page")
            require(queries.shape[2] % 16 == 0, "XQA: head sizes are multiples of 16")
            require(queries.dtype != FP8, "XQA: query is 8 bits")
        else:
            self._check_trtllm_gen(queries)
        num_seqs = len(queries)
        checks.check_tables(tables, num_seqs, len(keys))
        most = tables.shape[1] * tokens
        checks.check_lengths(given["seq_lens"], num_seqs, given["max_seq_len"], most)
        checks.check_workspace(given["workspace_buffer"], is_zeroed=is_xqa)
        starts = list(range(num_seqs + 1))
        # V by the strides of K: all that the kernels are told.
        raw = torch.as_strided(
            values, keys.shape, keys.stride(), values.storage_offset()
        )
        self._attend(given, (keys, raw), tables, (queries, starts))

    def context(self, given: dict[str, Any]) -> None:
        """``trtllm_batch_context_with_kv_cache``: trtllm-gen's prefill."""
        require(self.capability[0] == 10, "trtllm-gen: SM100 and SM103 only")
        queries, (keys, values) = given["query"], given["kv_cache"]
        self._check_call(given, queries, keys, values)
        self._check_trtllm_gen(queries)
        require(queries.dtype == keys.dtype, "prefill: query and cache differ")
        starts = self._check_prefill(given, queries, len(keys), keys.shape[2])
        raw = torch.as_strided(
            values, keys.shape, keys.stride(), values.storage_offset()
        )
        self._attend(given, (keys, raw), given["block_tables"], (queries, starts))

    def fmha_v2(self, given: dict[str, Any]) -> None:
        """``trtllm_fmha_v2_prefill`` over pages of K beside V."""
        major = self.capability[0]
        require(major in {9, 12}, "FMHA v2: SM90 and SM12x only")
        require(given["input_layout"] == "Q_PAGED_KV_HND", "the stand-in reads HND")
        queries, pages = given["qkv"]
        require(pages.dim() == 5, f"paged_KV has shape {tuple(pages.shape)}")
        require(pages.shape[1] == 2, f"paged_KV has shape {tuple(pages.shape)}")
        require(pages.is_contiguous(), "FMHA v2 takes strides from shapes")
        keys, values = pages.unbind(1)
        self._check_call(given, queries, keys, values)
        require(queries.dtype == keys.dtype, "prefill: query and cache differ")
        require(major == 9 or queries.dtype != FP8, "no 8 bits on SM12x")
        known = checks.FMHA_V2_HEAD_DIMS[major]
        require(queries.shape[2] in known, f"FMHA v2: head size {queries.shape[2]}")
        starts = self._check_prefill(given, queries, len(pages), pages.shape[3])
        cells = pages.flatten(0, 1)
        mode, window_left = given["mask_mode"], given["window_left"]
        require(mode in {"causal", "sliding_window"}, f"mask_mode is {mode}")
        if mode == "causal" and not 0 < window_left < given["max_kv_len"]:
            given = {**given, "window_left": -1}
        # The counter of tiles lies where XQA has its semaphores.
        given["workspace_buffer"][:4] = 1
        self._attend(
            given, (cells[0::2], cells[1::2]), given["block_tables"], (queries, starts)
        )

    def _check_call(
        self,
        given: dict[str, Any],
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        checks.check_rows(queries, given["out"])
        checks.check_cells(keys, values, queries.shape[2])
        checks.check_dtypes(queries, keys, given["out"], self.floats)
        checks.check_scales(given["bmm1_scale"], given["bmm2_scale"])
        group = queries.shape[1] / keys.shape[1]
        require(group in range(1, 33), f"{group} query heads of a KV head")
        require(given["window_left"] >= -1, "window_left is below -1")

    def _check_trtllm_gen(self, queries: torch.Tensor) -> None:
        known = checks.TRTLLM_GEN_HEAD_DIMS
        require(queries.shape[2] in known, f"trtllm-gen: head size {queries.shape[2]}")

    def _check_prefill(
        self,
        given: dict[str, Any],
        queries: torch.Tensor,
        num_pages: int,
        page_tokens: int,
    ) -> list[int]:
        num_seqs, tables = given["batch_size"], given["block_tables"]
        require(num_seqs > 0, "nothing to attend to")
        checks.check_tables(tables, num_seqs, num_pages)
        lens, limit = given["seq_lens"], given["max_kv_len"]
        checks.check_lengths(lens, num_seqs, limit, tables.shape[1] * page_tokens)
        kv_lens, starts = lens.tolist(), given["cum_seq_lens_q"]
        checks.check_starts(starts, None, len(queries), "cum_seq_lens_q")
        require(len(starts) == num_seqs + 1, "cum_seq_lens_q has another batch")
        checks.check_starts(given["cum_seq_lens_kv"], kv_lens, None, "cum_seq_lens_kv")
        checks.check_workspace(given["workspace_buffer"], is_zeroed=False)
        query_lens = starts.diff().tolist()
        require(max(query_lens) <= given["max_q_len"], "longer than max_q_len")
        pairs = zip(query_lens, kv_lens, strict=True)
        require(all(q <= kv for q, kv in pairs), "more queries than tokens")
        return list(starts.tolist())

    def _attend(
        self,
        given: dict[str, Any],
        cells: tuple[torch.Tensor, torch.Tensor],
        tables: torch.Tensor,
        rows: tuple[torch.Tensor, list[int]],
    ) -> None:
        PagedAttention(
            queries=rows[0],
            out=given["out"],
            keys=cells[0],
            values=cells[1],
            tables=tables,
            kv_lens=given["seq_lens"].tolist(),
            query_starts=rows[1],
            window_left=given["window_left"],
            score_scale=given["bmm1_scale"],
            value_scale=given["bmm2_scale"],
        ).attend()


_KNOWN = """
    query qkv input_layout kv_cache workspace_buffer block_tables seq_lens max_seq_len
    max_q_len max_kv_len bmm1_scale bmm2_scale batch_size cum_seq_lens_q cum_seq_lens_kv
    window_left out kv_layout mask_mode
"""


def _function(
    stand_in: StandIn, name: str, body: Callable[[dict[str, Any]], None]
) -> Callable[..., Any]:
    signature = SIGNATURES[name]
    defaults = {one.name: one.default for one in signature.parameters.values()}

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        checks.check_only(given, defaults, _KNOWN)
        stand_in.calls.append((name.rpartition(".")[2], given))
        body(given)
        return given["out"]

    return call


@contextmanager
def installed(
    capability: tuple[int, int],
    *,
    allows_float32: bool = False,
    without: str | None = None,
) -> Iterator[StandIn]:
    """Put the stand-in where ``import`` looks, and take it out again.

    Args:
        capability: the GPU's.
        allows_float32: which no real kernel does; for answers equal to the token.
        without: a function that an older version lacks.
    """
    assert not set(NAMES) & set(sys.modules), "flashinfer is there already"
    stand_in = StandIn(capability, allows_float32=allows_float32)
    modules: dict[str, Any] = {name: ModuleType(name) for name in NAMES}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None, is_package=name == NAMES[0])
    modules["flashinfer"].__version__ = "0.7.4"
    bodies = (stand_in.decode, stand_in.context, stand_in.fmha_v2)
    for name, body in zip(SIGNATURES, bodies, strict=True):
        module, _, function = name.rpartition(".")
        if function != without:
            setattr(modules[module], function, _function(stand_in, name, body))
    sys.modules.update(modules)
    try:
        yield stand_in
    finally:
        for name in NAMES:
            del sys.modules[name]
