"""Fits what is no network: LightGBM, XGBoost, and any estimator with scikit-learn's interface.

A team's class returns an estimator as its library has it. Boosters are fitted tree by tree, so that a run can
end at the last tree in time, and go on from saved trees; a tree of each class counts as one. Others are
fitted at once.

A model is kept in its library's own format, none of which is a pickle: the text of LightGBM, the UBJSON of
XGBoost, and skops for scikit-learn (skops_files.py).

Bit-equal after a kill are boosters that draw nothing at random: LightGBM and XGBoost draw by a generator
whose state is in no file. After a kill such a booster keeps its trees, and its generator begins anew for the
rest.
"""

from typing import Any

from daybreak.contract.errors import ParamsError
from daybreak.training.fit import Library
from daybreak.training.lightgbm_fit import LightGBM
from daybreak.training.scikit_fit import ScikitLearn
from daybreak.training.xgboost_fit import XGBoost

LIBRARIES: dict[str, Library] = {"lightgbm": LightGBM(), "xgboost": XGBoost(), "sklearn": ScikitLearn()}

# Estimators that the loop would fit as something else, each with the reason and the way.
REFUSED = {
    "LGBMRanker": "ranks within groups of rows, which no estimator is given; return LGBMRegressor",
    "XGBRanker": "ranks within groups of rows, which no estimator is given; return XGBRegressor",
    "XGBRFClassifier": "grows its trees at once; return XGBClassifier, or RandomForestClassifier",
    "XGBRFRegressor": "grows its trees at once; return XGBRegressor, or RandomForestRegressor",
}


def library_of(estimator: Any) -> Library:
    """Returns the library of an estimator; ParamsError where it is none that is known."""
    for kind in type(estimator).__mro__:
        if kind.__name__ in REFUSED:
            raise ParamsError(f"{type(estimator).__name__} {REFUSED[kind.__name__]}")
        top = kind.__module__.partition(".")[0]
        if top in LIBRARIES:
            return LIBRARIES[top]
    raise ParamsError(
        f"estimator returns {type(estimator).__name__}, which is of none of {', '.join(LIBRARIES)}; return "
        f"one of these, such as LGBMClassifier()"
    )
