"""Days that changed, were refused or meet other rules are judged again, and only those."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract.record_types import Batch
from daybreak.data.partitions import CLEAN, QUARANTINE, RAW, part_of, partitions
from daybreak.data.source import write_partition
from daybreak.data.validator import validate
from daybreak.examples.shop.sold_lines import LINES
from tests.clones import home_here
from tests.data.shop_weeks import EDITED, SUITE, TONIGHT, change, judge, judged_by, night, rows_of, sections

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_a_day_that_was_restated_to_no_rows_leaves_training_and_is_not_judged(in_shop_weeks: Path) -> None:
    emptied = TONIGHT - timedelta(days=7)
    assert emptied in partitions(CLEAN)
    part_of(emptied).unlink()
    write_partition(LINES.schema().empty_table(), part_of(emptied).parent)
    judge(TONIGHT, emptied)
    assert emptied not in {*partitions(CLEAN), *partitions(QUARANTINE)}
    assert TONIGHT in partitions(CLEAN)


@pytest.mark.slow
def test_changed_rules_judge_all_days_again(in_shop_weeks: Path) -> None:
    first = judge(TONIGHT)
    strict = in_shop_weeks / "strict.yaml"
    strict.write_text(SUITE.read_text().replace("rows:\n", EDITED))
    batch = Batch(day=TONIGHT, num_rows=0, num_bytes=0, digest="", late_days=())
    second = validate(home_here(), night(TONIGHT), batch, LINES, **sections(strict, max_quarantined=0.2))
    assert second.num_rows > 20 * first.num_rows
    assert all((rows_of(CLEAN, day)["quantity"] <= 40).all() for day in partitions(CLEAN))
    assert judge(TONIGHT).digest == first.digest  # a function of (raw, rules), whatever was before


@pytest.mark.slow
def test_a_day_that_no_night_has_passed_comes_in_with_the_next_and_one_that_was_refused_stays_out(
    in_shop_weeks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A night may have ended before it judged the day, or have refused it; edited rules change neither."""
    ended, refused, num_days = TONIGHT - timedelta(days=1), TONIGHT - timedelta(days=2), len(partitions(RAW))
    for day in (ended, refused):
        shutil.rmtree(part_of(day, CLEAN).parent)
    whole = part_of(refused).read_bytes()
    change(lambda rows: rows.head(len(rows) // 20), refused)
    for text in (SUITE.read_text(), SUITE.read_text().replace("rows:\n", EDITED)):
        report = judged_by(in_shop_weeks, text)
        assert set(partitions(RAW)) - set(partitions(CLEAN)) == {refused}
        assert f"{refused} stays out of training: {refused} is unlike the" in caplog.text
        (kept_out,) = [one.rule for one in report.expectations if "stays out of training" in one.rule]
        assert kept_out.startswith(f"{refused} came in before")
        caplog.clear()
    part_of(refused).write_bytes(whole)
    judge(TONIGHT)
    assert len(partitions(CLEAN)) == num_days
