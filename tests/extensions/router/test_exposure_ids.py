from daybreak.extensions.router.exposure_ids import ID, NUM_DRAWN, ExposureIds


def test_each_answer_has_an_id_of_its_own_that_only_its_user_may_name() -> None:
    ids, others = ExposureIds(b"key"), ExposureIds(b"another key")
    made = [ids.make("ann") for _ in range(3 * NUM_DRAWN)]
    assert len({one[8:22] for one in made}) == len(made)
    assert all(ID.fullmatch(one) and ids.belongs(one, "ann") for one in made)
    assert not any(ids.belongs(one, "bob") or others.belongs(one, "ann") for one in made)
