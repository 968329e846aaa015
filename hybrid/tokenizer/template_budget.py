"""What one rendering of a chat template may spend: steps, and the size of each value.

Knows nothing of Jinja's syntax; the template's environment reports what it does.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference
from jinja2.utils import Cycler, Joiner, Namespace

MAX_RENDERED_CHARACTERS: Final = 16 * 1024 * 1024
"""Longest text that a template may give or make on the way: several million tokens."""
MAX_TEMPLATE_STEPS: Final = 1_000_000
"""Most loop passes, calls, filters and operators of one rendering; work on long values
counts as more of them. They take 1 to 3 seconds; a thousand messages of 8,000
characters take a third of them."""
MAX_INTEGER_BITS: Final = 4096
_MAX_DEPTH: Final = 100
"""Of containers in containers; Python hashes nested tuples on the C stack."""
_CHARACTERS_PER_STEP: Final = 256
_ITEMS_PER_STEP: Final = 8
_NUMBER_CHARACTERS: Final = 8
_OBJECT_CHARACTERS: Final = 64
_CHANGING: Final = (
    *(Namespace, Cycler, Joiner),
    *(LoopContext, Macro, BlockReference, TemplateReference),
)
"""What Jinja itself changes after it was weighed; stands alone, never in a list."""


class TemplateLimit(SecurityError):
    """A template used up its steps, or makes something too large."""


class TemplateBudget:
    """Counts the steps of one rendering and weighs its values.

    A value weighs about as many characters as it prints. A list that holds another one
    twice weighs it twice, so that nothing grows by being shared; weights of containers,
    which templates cannot change, are kept.
    """

    def __init__(self) -> None:
        self._steps_left = MAX_TEMPLATE_STEPS
        # By id: weight and depth; the container itself, so that the id stays its own.
        self._known: Final[dict[int, tuple[int, int, object]]] = {}

    def spend(self, num_steps: int = 1) -> None:
        """Take ``num_steps`` from the budget.

        Raises:
            TemplateLimit: there are not as many left.
        """
        self._steps_left -= num_steps
        if self._steps_left < 0:
            raise TemplateLimit(f"it takes more than {MAX_TEMPLATE_STEPS} steps")

    def allow(self, num_characters: int) -> None:
        """Check the size of what is about to be made.

        Raises:
            TemplateLimit: it is too large.
        """
        if num_characters > MAX_RENDERED_CHARACTERS:
            raise TemplateLimit(
                f"it makes a value of more than {MAX_RENDERED_CHARACTERS} characters"
            )

    def charge(self, *values: object, deep: bool = True) -> None:
        """Pay for one operation on ``values``, and check their sizes.

        Args:
            values: its operands or its result.
            deep: whether it goes through all that containers hold.
        """
        num_steps = 1
        for value in values:
            weight, _ = self._weigh(value)
            self.allow(weight)
            if deep or isinstance(value, str):
                num_steps += weight // _CHARACTERS_PER_STEP
            elif isinstance(value, Collection):
                num_steps += len(value) // _ITEMS_PER_STEP
        self.spend(num_steps)

    def meter(self, values: Iterable[Any]) -> Iterator[Any]:
        """Pay for each of ``values`` as a loop takes it."""
        for value in values:
            self.spend()
            yield value

    def drain(self, values: Iterator[Any]) -> Iterator[Any]:
        """Take all of ``values`` now, so that what they hold can be weighed."""
        items = []
        weight = 0
        for value in self.meter(values):
            items.append(value)
            weight += self._weigh(value)[0]
            self.allow(weight)
        weight, depth = self._weigh(items)
        drained = iter(items)
        self._known[id(drained)] = (weight, depth, drained)
        return drained

    def weigh(self, value: object) -> int:
        """About how many characters ``value`` prints, with all that it holds."""
        return self._weigh(value)[0]

    def forget(self) -> None:
        """Let go of all values; to be called at the end."""
        self._known.clear()

    def _weigh(self, value: object) -> tuple[int, int]:
        """Characters and depth of containers."""
        if isinstance(value, str | bytes):
            return len(value), 0
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise TemplateLimit(f"it makes an integer of over {MAX_INTEGER_BITS} bits")
        if value is None or isinstance(value, int | float | Undefined):
            return _NUMBER_CHARACTERS, 0
        if isinstance(value, range):
            return _NUMBER_CHARACTERS * len(value), 1
        known = self._known.get(id(value))
        if known is not None:
            return known[:2]
        if not isinstance(value, Collection):
            return _OBJECT_CHARACTERS, 0
        weight, depth = self._weigh_items(value)
        self._known[id(value)] = (weight, depth, value)
        return weight, depth

    def _weigh_items(self, value: Collection[object]) -> tuple[int, int]:
        items: Iterable[object] = value
        if isinstance(value, Mapping):
            items = chain(value.keys(), value.values())
        self.spend(1 + len(value) // _ITEMS_PER_STEP)
        weight, depth = _NUMBER_CHARACTERS, 0
        for item in items:
            if isinstance(item, _CHANGING):
                raise SecurityError(f"a {type(item).__name__} within another value")
            item_weight, item_depth = self._weigh(item)
            weight += item_weight
            depth = max(depth, item_depth)
        if depth >= _MAX_DEPTH:
            raise TemplateLimit(f"it nests values deeper than {_MAX_DEPTH}")
        return weight, depth + 1
