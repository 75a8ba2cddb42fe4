"""How long ago a request to Vertex AI was made, by the journal."""

import pytest

from daybreak.contract import clock
from daybreak.contract.units import HOUR_S
from daybreak.extensions.vertex.operation_journal import OperationRequest


@pytest.mark.parametrize("set_by_s", [-6 * HOUR_S, 6 * HOUR_S])
def test_a_request_is_as_old_as_it_is_though_the_clock_was_set_since(set_by_s: float) -> None:
    if not clock.boot():
        pytest.skip("no name of a boot here")
    at, booted_at = clock.now() - 30 - set_by_s, clock.booted_at() - set_by_s
    assert 30 <= OperationRequest(name="deploy 1", at=at, boot=clock.boot(), booted_at=booted_at).age_s < 60
