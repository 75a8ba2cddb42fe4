"""What git says, in words of ours."""

from daybreak.storage import checkout


def test_a_repository_of_another_user_is_told_of_also_where_its_owner_cannot_be_seen() -> None:
    said = checkout._of_another_user("fatal: detected dubious ownership in repository at '/no such/home'")
    assert said.startswith("/no such/home is another user's, and git reads it for no other")
    assert said.endswith("--add safe.directory '/no such/home'")
