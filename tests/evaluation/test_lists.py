"""What the lists of a recommender reach, and those that changed most."""

import pytest

from daybreak.evaluation.lists import MOST_CHANGED, TOP, compared


def test_coverage_counts_each_item_once_and_novelty_the_places_beyond_the_popular() -> None:
    found, _ = compared([["a", "b"], ["a", "c"]], [["a", "b"], ["a", "b"]], popular=["a"])
    assert found and found.champion
    assert (found.num_users, found.top) == (2, TOP)
    assert (found.challenger.num_items, found.champion.num_items) == (3, 2)
    assert (found.challenger.beyond_popular, found.champion.beyond_popular) == (0.5, 0.5)
    assert found.kept == pytest.approx(0.75)


def test_the_most_different_lists_come_first_and_equal_ones_are_left_out() -> None:
    before = [["a", "b"]] * 30
    after = [["a", "b"]] * 26 + [["c", "d"], ["a", "c"], ["b", "a"], ["c", "b"]]
    _, changed = compared(after, before, popular=[])
    assert [one.after for one in changed.lists[:3]] == [("c", "d"), ("a", "c"), ("c", "b")]
    assert all(one.before != one.after for one in changed.lists)
    assert len(changed.lists) <= MOST_CHANGED


def test_users_without_a_list_do_not_count_and_without_any_there_is_nothing() -> None:
    found, _ = compared([["a"], [], ["b"]], [["a"], ["b"], []], popular=[])
    assert found
    assert found.num_users == 1
    assert compared([[], []], None, popular=[])[0] is None


def test_a_first_version_has_nothing_to_be_compared_with() -> None:
    found, changed = compared([["a"], ["b"]], None, popular=["b"])
    assert found
    assert (found.champion, found.kept, changed.lists) == (None, None, ())
