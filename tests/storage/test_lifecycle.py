"""A lifecycle rule that deletes what is still needed is named, before it deletes."""

from pathlib import Path

import pytest

from daybreak.check import _lifecycle
from daybreak.contract import params
from daybreak.storage.lifecycle import NeededFiles, complaints, place, rules
from tests import cloud_storage

SERVING = NeededFiles(bucket="b", prefix="team/serving/", what="what containers start from", for_ever=True)
JOBS = NeededFiles(bucket="b", prefix="team/jobs/", what="what jobs leave", for_ever=False)


def delete(**condition: object) -> dict[str, object]:
    return {"action": {"type": "Delete"}, "condition": condition}


@pytest.mark.parametrize(
    ("rule", "taken"),
    [
        (delete(age=30), [SERVING]),
        (delete(age=3), [SERVING, JOBS]),
        (delete(age=365, matchesPrefix=["team/"]), [SERVING]),
        (delete(age=365, matchesPrefix=["team/serving/things/version-1"]), [SERVING]),
        (delete(age=30, matchesPrefix=["team/jobs/", "team/things/"]), []),
        (delete(age=13, matchesPrefix=["team/jobs/"]), [JOBS]),
        (delete(age=3, matchesPrefix=["other/"]), []),
        (delete(createdBefore="2030-01-01"), [SERVING]),
        (delete(daysSinceNoncurrentTime=1), []),
        (delete(age=3, isLive=False), []),
        (delete(daysSinceCustomTime=1), []),
        ({"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 1}}, []),
    ],
)
def test_what_a_rule_takes_is_told_by_its_action_prefix_and_age(
    rule: dict[str, object], taken: list[NeededFiles]
) -> None:
    sentences = complaints([rule], [SERVING, JOBS])
    assert [text.partition(" (gs://")[0] for text in sentences] == [
        f"a lifecycle rule of gs://b deletes {each.what}" for each in taken
    ]
    assert all(
        ("matchesPrefix" in text) == each.for_ever and ("14 days or more" in text) != each.for_ever
        for text, each in zip(sentences, taken, strict=True)
    )


def test_only_urls_of_cloud_storage_have_rules_that_can_be_read() -> None:
    assert place("gs://b", "x", for_ever=True) == NeededFiles(bucket="b", prefix="", what="x", for_ever=True)
    for url in ("", "/things", "/mnt/b/things", "s3://b/things", "memory://b"):
        assert place(url, "x", for_ever=True) is None


def test_check_says_of_which_buckets_it_reads_no_rules(tmp_path: Path) -> None:
    plugs = dict.fromkeys(("source", "workload", "backend"), "a:B")
    loaded = params.check({**plugs, "train": {"checkpoints": "s3://shop/checkpoints"}})
    (finding,) = _lifecycle(tmp_path, loaded)
    assert (finding.what, finding.text.partition(":")[0]) == ("lifecycle of s3://shop", "not looked at")


@pytest.mark.slow
def test_check_reads_the_rules_of_the_bucket_and_complains_of_the_one_that_was_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text(
        "[core]\n    remote = bucket\n['remote \"bucket\"']\n    url = gs://bucket/dvc\n"
    )
    monkeypatch.delenv("MLFLOW_ARTIFACTS_DESTINATION", raising=False)
    plug = {"use": "a:B", "bucket": "gs://bucket"}
    loaded = params.check(
        {
            "source": "a:B",
            "workload": "a:B",
            "backend": plug,
            "serving": {"endpoint": plug},
            "train": {"checkpoints": "gs://bucket/checkpoints"},
        }
    )

    def findings() -> dict[str, list[str]]:
        texts: dict[str, list[str]] = {"well": [], "wrong": []}
        for finding in _lifecycle(tmp_path, loaded):
            texts["well" if finding.ok else "wrong"].append(finding.text)
        return texts

    with cloud_storage.served() as store, cloud_storage.emulated(store):
        client = storage.Client(project="p", credentials=AnonymousCredentials())
        bucket = client.get_bucket("bucket")
        assert findings() == {"well": ["no rule deletes what is still needed"], "wrong": []}
        bucket.add_lifecycle_delete_rule(age=30, matches_prefix=["things/", "jobs/", "checkpoints/"])
        bucket.patch()
        assert rules("bucket") == [delete(age=30, matchesPrefix=["things/", "jobs/", "checkpoints/"])]
        assert findings() == {"well": ["no rule deletes what is still needed"], "wrong": []}
        bucket.add_lifecycle_delete_rule(age=30)
        bucket.patch()
        serving, dvc = findings()["wrong"]
        assert "deletes what the endpoint's containers start from (gs://bucket/serving/) after 30" in serving
        assert "deletes DVC's copy of data and models (gs://bucket/dvc/) after 30 days; limit it" in dvc
    with cloud_storage.emulated(store):  # nobody answers there any more
        (sentence,) = findings()["well"]
        assert sentence.startswith("not looked at: the lifecycle rules of gs://bucket cannot be read")
