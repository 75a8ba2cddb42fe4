"""Which setting an update takes follows the memory that is left, and what settings took before."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.memory_limits.memory_policy import (
    RESERVE,
    RESERVE_BYTES,
    MemoryPolicy,
    PassSetting,
    pass_settings,
)

MIB = 1 << 20
OWN = PassSetting(micro_batch_size=64)
IDLE = 200 * MIB
SAMPLE = 10 * MIB


def true_peak(setting: PassSetting) -> int:
    """Returns the true peak of memory of a setting; recomputing saves 30 % of the samples' share."""
    again = 0.7 if setting.recompute else 1.0
    return int(IDLE + setting.micro_batch_size * SAMPLE * again * (1 - setting.band_rate))


def taking(policy: MemoryPolicy, limits: list[int]) -> list[PassSetting]:
    """The settings of updates under these limits; what does not fit is taken again, with another."""
    now, taken = policy.settings[0], []
    for limit in limits:
        failed: list[PassSetting] = []
        while True:
            now = policy.choose(now, own_bytes=IDLE, free_bytes=limit - IDLE, failed=failed)
            if true_peak(now) <= limit or now == policy.settings[-1]:
                break
            policy.observe(now, peak_bytes=true_peak(now))
            failed.append(now)
        policy.observe(now, peak_bytes=true_peak(now), sample_s=now.time)
        taken.append(now)
    return taken


def test_a_setting_goes_down_with_the_limit_and_up_again():
    policy = MemoryPolicy(pass_settings(OWN, can_recompute=True))
    whole, half = true_peak(OWN) * 11 // 10, true_peak(OWN) * 66 // 100
    taken = taking(policy, [whole] * 2 + [half] * 3 + [whole] * 2)
    assert [setting == OWN for setting in taken] == [True] * 2 + [False] * 3 + [True] * 2
    assert {setting.band_rate for setting in taken} == {0.0}
    assert taken[2] == PassSetting(micro_batch_size=32)  # smaller passes would take more time


def test_computing_activations_again_is_expected_to_save_nothing_until_it_has_been_tried():
    policy = MemoryPolicy(pass_settings(OWN, can_recompute=True))
    again = replace(OWN, recompute=True)
    for size in (64, 32):
        setting = replace(OWN, micro_batch_size=size)
        policy.observe(setting, peak_bytes=true_peak(setting), sample_s=setting.time)
    assert policy.peak(again, own_bytes=IDLE) == policy.peak(OWN, own_bytes=IDLE)
    smaller = replace(again, micro_batch_size=16)
    policy.observe(smaller, peak_bytes=true_peak(smaller), sample_s=again.time)
    assert abs(policy.peak(again, own_bytes=IDLE) - true_peak(again)) < MIB


def test_the_model_is_changed_only_where_nothing_else_fits():
    settings = pass_settings(PassSetting(micro_batch_size=1), can_recompute=False, band_rates=(0.5, 0.75))
    policy = MemoryPolicy(settings)
    policy.observe(settings[0], peak_bytes=IDLE + 400 * MIB)
    chosen = [
        policy.choose(settings[0], own_bytes=IDLE, free_bytes=free * MIB).band_rate
        for free in (450, 360, 250)
    ]
    assert chosen == [0.0, 0.5, 0.75]


def test_a_setting_that_keeps_more_is_expected_to_take_no_less_than_one_that_was_measured():
    whole, half, quarter = settings = pass_settings(
        PassSetting(micro_batch_size=1), can_recompute=False, band_rates=(0.5, 0.75)
    )
    policy = MemoryPolicy(settings)
    policy.observe(whole, peak_bytes=IDLE + 100 * MIB)
    policy.observe(quarter, peak_bytes=IDLE + 90 * MIB)  # more than estimated
    assert policy.peak(half, own_bytes=IDLE) >= IDLE + 90 * MIB
    assert policy.choose(quarter, own_bytes=IDLE, free_bytes=88 * MIB) == quarter  # none fits


@given(
    st.lists(st.integers(250 * MIB, 2000 * MIB), min_size=1, max_size=30),
    st.booleans(),
    st.integers(1, 100),
)
def test_no_update_is_taken_on_a_setting_known_not_to_fit_where_another_is_known_to(limits, again, size):
    policy = MemoryPolicy(pass_settings(PassSetting(micro_batch_size=size), can_recompute=again))
    known: dict[PassSetting, int] = {}
    for limit in limits:
        (setting,) = taking(policy, [limit])
        known[setting] = true_peak(setting)
        if any(peak + 2 * max(RESERVE_BYTES, RESERVE * peak) <= limit for peak in known.values()):
            assert true_peak(setting) <= limit
        if true_peak(policy.settings[0]) <= limit - 2 * max(RESERVE_BYTES, RESERVE * limit):
            assert setting == policy.settings[0] or policy.settings[0] not in known


def test_what_is_slow_by_measure_gives_way_to_what_may_be_faster():
    policy = MemoryPolicy(pass_settings(OWN, can_recompute=True))
    policy.observe(OWN, peak_bytes=true_peak(OWN), sample_s=1.0)
    eighth = PassSetting(micro_batch_size=8)
    policy.observe(eighth, peak_bytes=true_peak(eighth), sample_s=5.0)
    free = true_peak(eighth) + 2 * RESERVE_BYTES - IDLE
    assert policy.choose(eighth, own_bytes=IDLE, free_bytes=free).recompute
