"""What FlashInfer's kernels take for granted, said aloud: each check can refuse.

The real functions check some of it and misread the rest in silence. Source: FlashInfer
0.7.4, ``flashinfer/xqa.py``, ``flashinfer/prefill.py``, ``csrc/fmha_v2_run.cu``,
``csrc/trtllm_fmha_kernel_launcher.cu``, ``csrc/xqa/xqa_wrapper.cu``.
"""

from itertools import pairwise
from typing import Any, Final

import torch

FP8: Final = torch.float8_e4m3fn
SEMAPHORE_BYTES: Final = 8 * 2**20
"""The first bytes of XQA's workspace."""
MIN_WORKSPACE_BYTES: Final = 128 * 2**20
FMHA_V2_HEAD_DIMS: Final = {
    9: (32, 40, 48, 64, 80, 96, 104, 128, 160, 192, 256),
    12: (64, 128, 256, 512),
}
"""By major compute capability."""
TRTLLM_GEN_HEAD_DIMS: Final = (64, 128, 256)


def require(condition: object, message: str) -> None:
    """Refuse.

    Raises:
        ValueError: the condition does not hold.
    """
    if not condition:
        raise ValueError(message)


def check_only(given: dict[str, Any], defaults: dict[str, Any], known: str) -> None:
    """Whatever the stand-in does not know must be left at its default."""
    for name in given.keys() - set(known.split()):
        require(given[name] == defaults[name], f"the stand-in does not know {name}")
    require(given.get("kv_layout", "HND") == "HND", "the stand-in reads HND only")


def check_rows(queries: torch.Tensor, out: torch.Tensor) -> None:
    """Queries and output are read and written as dense ``[N, heads, dims]``."""
    require(queries.dim() == 3, f"query has shape {tuple(queries.shape)}")
    require(queries.is_contiguous(), "query is not contiguous")
    require(isinstance(out, torch.Tensor), "out is made anew at every call")
    require(out.shape == queries.shape, f"out has shape {tuple(out.shape)}")
    require(out.is_contiguous(), "out is not contiguous")


def check_dtypes(
    queries: torch.Tensor, cells: torch.Tensor, out: torch.Tensor, floats: set[Any]
) -> None:
    """Only what there are kernels for."""
    require(queries.dtype in floats | {FP8}, f"query is {queries.dtype}")
    require(cells.dtype in {queries.dtype, FP8}, f"the cache is {cells.dtype}")
    if queries.dtype == FP8:
        require(out.dtype in floats, f"out is {out.dtype}")
    else:
        require(out.dtype == queries.dtype, f"out is {out.dtype}")


def check_cells(keys: torch.Tensor, values: torch.Tensor, head_dim: int) -> None:
    """Pages of ``[heads, tokens, dims]``; V is read with the strides of K."""
    require(keys.dim() == 4, f"K has shape {tuple(keys.shape)}")
    require(keys.shape == values.shape, "K and V have different shapes")
    require(keys.dtype == values.dtype, "K and V have different dtypes")
    require(keys.stride() == values.stride(), "K and V have different strides")
    require(keys.stride(3) == 1, "dims are not neighbours")
    require(keys.shape[3] == head_dim, "K and query have different head sizes")
    tokens = keys.shape[2]
    require(tokens & (tokens - 1) == 0, f"{tokens} tokens a page")
    require(keys.shape[0] * 2 < 2**31, "more pages than 32 bits count")


def check_tables(tables: torch.Tensor, num_seqs: int, num_pages: int) -> None:
    """int32 rows end to end, every entry a page, used or not."""
    require(tables.dtype == torch.int32, f"block_tables is {tables.dtype}")
    require(tables.dim() == 2, f"block_tables has shape {tuple(tables.shape)}")
    require(len(tables) == num_seqs, f"block_tables has {len(tables)} rows")
    require(tables.is_contiguous(), "block_tables is not contiguous")
    require(
        int(tables.min()) >= 0 and int(tables.max()) < num_pages,
        f"block_tables has an entry outside the {num_pages} pages",
    )


def check_lengths(lens: torch.Tensor, num_seqs: int, limit: int, most: int) -> None:
    """Int32 (or uint32) ``[B]``, from 1 to what was announced and the table holds."""
    require(lens.dtype in {torch.int32, torch.uint32}, f"seq_lens is {lens.dtype}")
    require(lens.shape == (num_seqs,), f"seq_lens has shape {tuple(lens.shape)}")
    require(lens.is_contiguous(), "seq_lens is not contiguous")
    values = lens.tolist()
    require(min(values) >= 1, "a sequence has no token")
    require(max(values) <= limit, f"longer than the announced {limit} tokens")
    require(max(values) <= most, f"longer than a row's {most} tokens")


def check_starts(
    starts: torch.Tensor, lens: list[int] | None, total: int | None, name: str
) -> None:
    """int32 ``[B + 1]``: sums of the lengths, from 0."""
    require(starts.dtype == torch.int32, f"{name} is {starts.dtype}")
    require(starts.dim() == 1 and starts.is_contiguous(), f"{name} is not one row")
    values = starts.tolist()
    require(values[0] == 0, f"{name} begins with {values[0]}")
    steps = [after - before for before, after in pairwise(values)]
    require(min(steps) > 0, f"{name} does not grow")
    require(lens is None or steps == lens, f"{name} are no sums of seq_lens")
    require(total is None or values[-1] == total, f"{name} ends with {values[-1]}")


def check_workspace(workspace: torch.Tensor, *, is_zeroed: bool) -> None:
    """Bytes enough; XQA's begins with semaphores."""
    require(workspace.dtype in {torch.uint8, torch.int8}, f"it is {workspace.dtype}")
    require(workspace.is_contiguous(), "workspace_buffer is not contiguous")
    size = workspace.nbytes
    require(size >= MIN_WORKSPACE_BYTES, f"workspace_buffer has {size} bytes")
    if is_zeroed:
        semaphores = workspace[:SEMAPHORE_BYTES]
        require(not semaphores.any(), "workspace_buffer's semaphores are not zero")


def check_scales(*scales: object) -> None:
    """Numbers of the host, by which a launch is made."""
    require(all(isinstance(one, float) for one in scales), "a scale is no float")
