"""What a caller asks of a scheduler, in token ids: the entry seam."""

from dataclasses import dataclass

from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to be continued. Immutable: plans share it by reference."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    """Ids that end an answer unless ``ignore_eos``: the union of what the model's
    generation config, tokenizer and chat template call the end."""
    priority: int = 0
    """Lower runs first under the priority policy; ignored under FCFS."""
    arrival_time_s: float = 0.0
    """Seconds on a monotonic clock; ties between equal priorities go to the earlier."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    adapter: str | None = None
    """Name and version of a weight adapter: its KV is never shared with another's."""
