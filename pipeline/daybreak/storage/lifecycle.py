"""Reads the lifecycle rules of a bucket, and judges whether a rule deletes files that are still needed.

A rule deletes by age, whether a file is used or not, and Cloud Storage tells nobody. Files that a rollback
restores or a starting container fetches are needed at any age. Files that jobs fetch are written anew every
week while they are used, so a rule may delete them some days after that.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daybreak.contract.errors import JobError
from daybreak.storage.bucket import RENEWED

LEAST_DAYS = 2 * RENEWED.days  # age below which a rule may take what a job needs
TIMEOUT_S = 30
# Conditions under which a rule deletes only what was replaced already, or has a time that we never set.
HARMLESS = (
    "daysSinceNoncurrentTime",
    "noncurrentTimeBefore",
    "numNewerVersions",
    "daysSinceCustomTime",
    "customTimeBefore",
)


@dataclass(frozen=True, kw_only=True)
class NeededFiles:
    """Files that are needed: bucket, prefix of the names, and a description."""

    bucket: str
    prefix: str
    what: str
    for_ever: bool  # or for some days only, from when they were last used


def place(url: str, what: str, *, for_ever: bool) -> NeededFiles | None:
    """Returns the place of a URL in Cloud Storage; None for any other URL.

    >>> place("gs://shop/team/", "what jobs need", for_ever=False).prefix
    'team/'
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("gs", "gcs"):
        return None
    bucket, _, folder = rest.partition("/")
    prefix = f"{folder.strip('/')}/".lstrip("/")
    return NeededFiles(bucket=bucket, prefix=prefix, what=what, for_ever=for_ever)


def complaints(rules: Sequence[Mapping[str, Any]], places: Sequence[NeededFiles]) -> list[str]:
    """Returns a sentence for each place of which a rule may delete what is needed.

    Args:
        rules: rules of a bucket from the API of Cloud Storage, each with an `action` and a `condition`.
        places: needed files in that bucket.
    """
    sentences = []
    for each in places:
        rule = next((rule for rule in rules if _takes(rule, each)), None)
        if rule is None:
            continue
        age = rule["condition"].get("age")
        when = f"after {age} days" if age is not None else f"by its condition {dict(rule['condition'])}"
        if each.for_ever:
            then = "limit it by matchesPrefix to what jobs leave"
        else:
            then = f"set its age to {LEAST_DAYS} days or more"
        sentences.append(
            f"a lifecycle rule of gs://{each.bucket} deletes {each.what} (gs://{each.bucket}/{each.prefix}) "
            f"{when}; {then} (docs/vertex.md)"
        )
    return sentences


def _takes(rule: Mapping[str, Any], place: NeededFiles) -> bool:
    """Returns whether a rule may delete files of a place while they are needed."""
    condition = rule.get("condition", {})
    if rule.get("action", {}).get("type") != "Delete" or condition.get("isLive") is False:
        return False
    if any(name in condition for name in HARMLESS):
        return False
    prefixes = condition.get("matchesPrefix") or [""]
    if not any(place.prefix.startswith(each) or each.startswith(place.prefix) for each in prefixes):
        return False
    return place.for_ever or condition.get("age", LEAST_DAYS) < LEAST_DAYS


def rules(bucket: str) -> list[Mapping[str, Any]]:
    """Returns the lifecycle rules of a bucket; JobError where they may not or cannot be read."""
    try:
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage
    except ImportError as error:
        raise JobError(
            f"the lifecycle rules of gs://{bucket} cannot be read ({error}); install daybreak[gcp]"
        ) from None
    emulated = "STORAGE_EMULATOR_HOST" in os.environ
    try:
        anonymous = AnonymousCredentials() if emulated else None  # type: ignore[no-untyped-call]
        client = storage.Client(project="-", credentials=anonymous)
        metadata = client.get_bucket(bucket, timeout=TIMEOUT_S, retry=None)
        return [dict(rule) for rule in metadata.lifecycle_rules]
    except (GoogleAPICallError, GoogleAuthError, OSError) as error:
        raise JobError(
            f"the lifecycle rules of gs://{bucket} cannot be read ({type(error).__name__}); give who runs "
            f"the nights the role roles/storage.legacyBucketReader on it"
        ) from None
