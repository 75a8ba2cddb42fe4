"""The shop's recommender after an edit by which the items have other numbers."""

from typing import TYPE_CHECKING

from daybreak import Prepared, Window
from daybreak.examples.shop.recommender import Recommender

if TYPE_CHECKING:
    import ibis.expr.types as ir


class Renumbered(Recommender):
    """Has the names of the items in the opposite order, so that another class reads wrong ones."""

    def arrays(self, rows: "ir.Table", window: Window) -> Prepared:
        """Returns the arrays of the base class, with other items."""
        made = super().arrays(rows, window)
        items = made.tables["items"]
        turned = items.take(list(range(len(items) - 1, -1, -1)))
        return Prepared(
            arrays=made.arrays,
            tables={**made.tables, "items": turned},
            facts=made.facts,
            num_train=made.num_train,
            num_test=made.num_test,
        )
