"""The declaration of a team's rows: what could never be kept is refused where it is declared."""

import pytest

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Float, Label, Table, Time, days


def test_a_vector_that_may_be_null_is_refused_where_it_is_declared() -> None:
    columns = {"at": Time(), "v": Float(size=2, nullable=True)}
    with pytest.raises(ParamsError, match=r"v is a vector that may be null.*have zeros delivered"):
        Table(time="at", columns=columns)


def test_a_label_that_is_a_vector_cannot_come_late() -> None:
    columns = {"at": Time(), "v": Float(size=2)}
    assert Table(time="at", columns=columns, label=Label("v")).label == Label("v")
    with pytest.raises(ParamsError, match="the label v is a vector that is null until ripe_after"):
        Table(time="at", columns=columns, label=Label("v", ripe_after=days(1)))
