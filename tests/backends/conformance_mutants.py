"""The conformance kit over executors with one fault each.

Collected only when it is named: test_conformance_kit.py runs it and compares what
failed with ``SEEN_BY``.
"""

from collections.abc import Sequence
from inspect import getmembers, isfunction, signature
from pathlib import Path
from typing import ClassVar, Final

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Executor
from hybrid.testing import (
    Answer,
    ExecutorConformance,
    LoadedExecutor,
    recomputed_answers,
)
from tests.backends import dishonest_executors as dishonest
from tests.backends import faulty_executors as faulty
from tests.backends import sampling_executors as liars

COPIES: Final = {"test_block_copies_are_done_in_order"}
CLOSED: Final = {"test_a_closed_executor_leaves_nothing"}
DTYPES: Final = {"test_every_declared_dtype_gives_the_right_tokens"}
FIELDS: Final = {"test_a_declared_sampling_field_is_honoured"}
PROMPT_LOGPROBS: Final = {
    "test_prompt_logprobs_do_not_depend_on_chunks",
    "test_decoded_logprobs_are_those_of_a_prompt",
}
DRAWN_SAMPLES: Final = {"test_samples_that_differ_do_not_mix"}
PREFIXES: Final = {
    "test_a_cached_prefix_gives_the_right_tokens",
    "test_a_prefix_is_shared_while_its_owner_answers",
    "test_a_prompt_of_whole_blocks_is_answered_from_the_cache",
}
JOINING: Final = {
    "test_a_small_budget_gives_the_right_tokens",
    "test_an_aborted_answer_leaves_no_trace",
    "test_an_aborted_prompt_leaves_no_trace",
    "test_prompts_that_join_midway_give_the_right_tokens",
}
"""Prompts begin beside others that have begun."""
MIXED: Final = (
    JOINING
    | DTYPES
    | {
        "test_a_mixed_batch_gives_the_right_tokens",
        "test_a_prefix_is_shared_while_its_owner_answers",
        "test_an_aborted_preempted_request_leaves_no_trace",
        "test_any_traffic_gives_the_right_tokens",
        "test_preempted_requests_give_the_right_tokens",
        "test_samples_that_differ_do_not_mix",
    }
)
"""Some steps hold contexts and generations."""
BATCHED: Final = (
    MIXED
    | PROMPT_LOGPROBS
    | {
        "test_a_cached_prefix_gives_the_right_tokens",
        "test_greedy_samples_of_a_prompt_are_all_right",
        "test_seeded_draws_do_not_depend_on_neighbours",
    }
)
"""Some steps hold several sequences."""
ANSWERS: Final = (
    BATCHED
    | PREFIXES
    | {
        "test_aborting_what_has_ended_changes_nothing",
        "test_an_aborted_waiting_request_leaves_no_trace",
        "test_each_prompt_alone_gives_the_right_tokens",
        "test_the_same_run_twice_gives_the_same_tokens",
    }
)
"""Requests are answered."""
ON_A_DEVICE: Final = {
    name
    for name, test in getmembers(ExecutorConformance, isfunction)
    if name.startswith("test_")
    and not {"bench", "every_bench", "dtype_bench"}.isdisjoint(
        signature(test).parameters
    )
} - FIELDS
"""Something is loaded on each device."""
ALONE: Final = {"test_likeliest_ids_alone_are_those_of_the_logits"}
ROWS: Final = {
    "test_logits_come_as_rows_of_float32",
    "test_logprobs_are_those_of_a_distribution",
}
EVERY_BLOCK_SIZE: Final = COPIES | {
    "test_a_cached_prefix_gives_the_right_tokens",
    "test_a_mixed_batch_gives_the_right_tokens",
    "test_a_prompt_of_whole_blocks_is_answered_from_the_cache",
    "test_each_prompt_alone_gives_the_right_tokens",
    "test_greedy_samples_of_a_prompt_are_all_right",
    "test_likeliest_ids_alone_are_those_of_the_logits",
    "test_logits_come_as_rows_of_float32",
    "test_preempted_requests_give_the_right_tokens",
    "test_the_pool_is_the_one_asked_for",
}

SEEN_BY: Final[dict[type[Executor], set[str]]] = {
    faulty.NoCopies: COPIES
    | {
        "test_greedy_samples_of_a_prompt_are_all_right",
        "test_samples_that_differ_do_not_mix",
    },
    faulty.ReversedCopies: COPIES,
    faulty.CopiesAtOnce: COPIES,
    # Wrong in the same way each time, which two runs that are compared do not show.
    faulty.LostSlots: ANSWERS
    - {
        "test_samples_that_differ_do_not_mix",
        "test_the_same_run_twice_gives_the_same_tokens",
    },
    faulty.StaleTables: DTYPES
    | {
        "test_any_traffic_gives_the_right_tokens",
        "test_preempted_requests_give_the_right_tokens",
        "test_samples_that_differ_do_not_mix",
        "test_seeded_draws_do_not_depend_on_neighbours",
    },
    faulty.ChunksFromZero: MIXED
    | PREFIXES
    | {"test_prompt_logprobs_do_not_depend_on_chunks"},
    faulty.EmptyPrefixes: JOINING
    | PREFIXES
    | DTYPES
    | {"test_any_traffic_gives_the_right_tokens"},
    faulty.SwappedRows: MIXED,
    faulty.CrossTalk: BATCHED,
    faulty.Forgetful: ANSWERS | COPIES | ALONE,
    faulty.OneRowTooMany: ANSWERS | ROWS,
    faulty.DoubleLogits: ANSWERS | ROWS,
    faulty.LastRowOnly: PROMPT_LOGPROBS,
    # Draws that differ, and log-probabilities, are looked up in logits.
    faulty.WrongAlone: ALONE
    | ANSWERS
    - PROMPT_LOGPROBS
    - DRAWN_SAMPLES
    - {
        "test_seeded_draws_do_not_depend_on_neighbours",
        "test_the_same_run_twice_gives_the_same_tokens",
    },
    dishonest.FalseDtype: DTYPES,
    dishonest.FlatDtype: DTYPES,
    dishonest.FalseDevice: ON_A_DEVICE,
    liars.Greedy: FIELDS | DRAWN_SAMPLES,
    liars.DeafToTemperature: FIELDS | DRAWN_SAMPLES,
    liars.DeafToSeed: FIELDS
    | DRAWN_SAMPLES
    | {"test_seeded_draws_do_not_depend_on_neighbours"},
    liars.DeafToTopK: FIELDS,
    liars.Contrary: FIELDS,
    liars.NeverStops: FIELDS,
    dishonest.FalseBlockSize: EVERY_BLOCK_SIZE,
    dishonest.SmallPool: {"test_the_pool_is_the_one_asked_for"},
    dishonest.Contradictory: {"test_capabilities_make_sense"},
    dishonest.Fickle: {"test_capabilities_do_not_change"},
    dishonest.AnyOption: {"test_an_unknown_option_is_refused_by_name"},
    dishonest.AnyModel: {
        "test_a_model_that_is_none_is_refused",
        "test_no_model_is_refused",
    },
    dishonest.Overdone: {"test_loading_reports_no_nonsense"},
    dishonest.ClosesOnce: {"test_closing_twice_is_no_error"},
    dishonest.Held: CLOSED,
    dishonest.Threaded: CLOSED,
}
"""By mutant, the tests that fail; all others pass."""


class Mutated(ExecutorConformance):
    """A model of which only the sizes are read, and block sizes to tell apart."""

    architectures: ClassVar[Sequence[str]] = ("any",)
    block_sizes: ClassVar[Sequence[int] | None] = (4,)

    def write_model(self, folder: Path, architecture: str) -> ModelSource:
        """Write what the null executor reads."""
        (folder / "config.json").write_text('{"vocab_size": 512}')
        return ModelSource(architecture, folder, CheckpointFormat.HF_DIRECTORY)

    def reference(
        self,
        loaded: LoadedExecutor,
        prompts: Sequence[tuple[int, ...]],
        num_tokens: int,
    ) -> list[Answer]:
        """Recompute, for nobody else can run such a model."""
        return recomputed_answers(loaded, prompts, num_tokens)


def _case_of(mutant: type[Executor]) -> type[Mutated]:
    attributes: dict[str, object] = {"executor": mutant}
    if mutant is not dishonest.AnyModel:
        attributes["architectures"] = ()
    if mutant is dishonest.FalseBlockSize:
        attributes["block_sizes"] = (4, 8)
    return type(f"Test{mutant.__name__}", (Mutated,), attributes)


globals().update({case.__name__: case for case in map(_case_of, SEEN_BY)})
