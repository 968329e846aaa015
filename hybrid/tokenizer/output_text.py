"""The visible text of one answer: detokenised, cut at stop strings, held back."""

from collections.abc import Sequence

from hybrid.scheduler.sampling_params import SamplingParams

from .detokenizer import IncrementalDetokenizer
from .stop_matcher import StopMatcher


class OutputText:
    """Grows by tokens; what it has shown it never takes back.

    A stop string ends the text at the character that completes it, wherever token
    boundaries fall: the text is cut before it, or after it with
    ``include_stop_str_in_output``. It counts only if a token after the first
    ``min_tokens`` completes it. Text that may become a stop string is held back.
    """

    def __init__(
        self, params: SamplingParams, detokenizer: IncrementalDetokenizer
    ) -> None:
        """Start empty.

        Args:
            params: the stop strings and how they count.
            detokenizer: fresh, after the prompt; fed by this object alone.
        """
        self._params = params
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(params.stop) if params.stop else None
        self._parts: list[str] = []
        self._new_parts: list[str] = []
        self._held = ""
        self._is_over = False
        self.num_tokens_consumed = 0
        """Tokens of the answer, from its start. Those appended after the one that
        completed a stop string do not count: they are to be dropped."""

    @property
    def text(self) -> str:
        """All text that is certain."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def new_text(self) -> str:
        """What the last ``append`` added to ``text``; their join is ``text``."""
        return "".join(self._new_parts)

    def append(
        self,
        new_token_ids: Sequence[int],
        *,
        is_last: bool,
        ends_at_stop_token: bool = False,
    ) -> str | None:
        """Take in the answer's next tokens.

        Args:
            new_token_ids: any number, none included.
            is_last: nothing follows: held text is shown. After it, or after a match,
                further calls change nothing.
            ends_at_stop_token: the last of them is an end-of-sequence or stop token
                that ended the answer: its text is left out, unless
                ``include_stop_str_in_output``.

        Returns:
            The stop string that these tokens completed, or ``None``.
        """
        self._new_parts = []
        if self._is_over:
            return None
        self._is_over = is_last
        skips_last = ends_at_stop_token and not self._params.include_stop_str_in_output
        for index, token_id in enumerate(new_token_ids, start=1):
            self.num_tokens_consumed += 1
            if skips_last and index == len(new_token_ids):
                break
            stop = self._take(self._detokenizer.push((token_id,)))
            if stop is not None:
                return stop
        if is_last:
            stop = self._take(self._detokenizer.finish())
            if stop is not None:
                return stop
            self._show(self._held)
            self._held = ""
        return None

    def _take(self, piece: str) -> str | None:
        """Show what of the text up to ``piece`` is certain; the stop string it met."""
        if self._matcher is None:
            self._show(piece)
            return None
        may_match = self.num_tokens_consumed > self._params.min_tokens
        match = self._matcher.scan(piece, may_match=may_match)
        text = self._held + piece
        if match is None:
            num_certain = len(text) - self._matcher.num_held
            self._show(text[:num_certain])
            self._held = text[num_certain:]
            return None
        end = len(self._held) + match.end
        if not self._params.include_stop_str_in_output:
            end -= len(match.stop)
        self._show(text[:end])
        self._held = ""
        self._is_over = True
        return match.stop

    def _show(self, piece: str) -> None:
        if piece:
            self._parts.append(piece)
            self._new_parts.append(piece)
