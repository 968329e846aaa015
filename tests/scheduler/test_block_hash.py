"""Block hashes: equal for equal contexts, and for nothing else."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hybrid.scheduler.block_hash import DIGEST_BYTES, hash_block, hash_root

texts = st.text(max_size=3)


def test_key_domains_never_collide() -> None:
    """A value in one domain is told from the same value in any other, and from none."""
    keys = [
        hash_root((), None, None),
        hash_root((), "X", None),
        hash_root((), None, "X"),
        hash_root((), "X", "X"),
        hash_root((), "", None),
        hash_root((), None, ""),
        hash_root((), "a", "b"),
        hash_root((), "ab", ""),
        hash_root((), "", "ab"),
        hash_root((("X", ""),), None, None),
        hash_root((("", "X"),), None, None),
        hash_root((("a", "b"), ("c", "d")), None, None),
        hash_root((("a", "b"),), "c", "d"),
        hash_root((("model", "m"), ("kv_dtype", "float32")), None, None),
        hash_root((("model", "m"), ("kv_dtype", "bfloat16")), None, None),
        hash_root((("model", "m2"), ("kv_dtype", "float32")), None, None),
    ]
    assert all(one != other for one, other in combinations(keys, 2))
    assert {len(key) for key in keys} == {DIGEST_BYTES}


@given(*[st.tuples(st.lists(st.tuples(texts, texts), max_size=2), texts, texts)] * 2)
def test_roots_are_equal_exactly_for_equal_keys(
    one: tuple[list[tuple[str, str]], str, str],
    other: tuple[list[tuple[str, str]], str, str],
) -> None:
    """Any two different keys have different roots."""
    assert (hash_root(*one) == hash_root(*other)) == (one == other)


def test_a_salt_may_be_any_text() -> None:
    """A lone surrogate in a salt is no error."""
    assert hash_root((), None, "\ud800") != hash_root((), None, "?")


def test_blocks_differ_by_tokens_and_by_everything_before() -> None:
    """Equal tokens after different parents are different blocks."""
    root, other = hash_root((), None, None), hash_root((), None, "salt")
    first = hash_block(root, (1, 2))
    assert first == hash_block(root, [1, 2])
    assert first != hash_block(other, (1, 2))
    assert first != hash_block(root, (2, 1))
    assert hash_block(first, (3, 4)) != hash_block(root, (3, 4))
    assert hash_block(root, (1, 256)) != hash_block(root, (257, 0))
