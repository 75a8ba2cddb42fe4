"""Writes and reads estimators of scikit-learn as files of skops, which are no pickles.

A file of skops names the functions and classes that it is made of. By default skops trusts public estimators,
and what computes numbers: ufuncs, losses, arrays. What fitted estimators hold besides is named here, one by
one: a prefix such as `sklearn.` would trust all that any of its modules has imported, `subprocess` included.
"""

import json
from io import BytesIO
from typing import Any
from zipfile import ZipFile

from daybreak.contract.errors import DataError

_KERNELS = (
    "CompoundKernel",
    "ConstantKernel",
    "DotProduct",
    "ExpSineSquared",
    "Exponentiation",
    "Matern",
    "PairwiseKernel",
    "Product",
    "RBF",
    "RationalQuadratic",
    "Sum",
    "WhiteKernel",
)
_DISTANCES = ("Chebyshev", "Euclidean", "Manhattan", "Minkowski")
_SCORES = ("chi2", "f_classif", "f_regression", "r_regression")
TRUSTED = frozenset(
    (
        "functools.partial",  # of a function that is trusted itself
        "numpy.dtype",
        "sklearn._loss.loss.HalfTweedieLoss",
        "sklearn._loss.loss.HalfTweedieLossIdentity",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        *(f"sklearn.feature_selection._univariate_selection.{name}" for name in _SCORES),
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        *(f"sklearn.gaussian_process.kernels.{name}" for name in _KERNELS),
        *(f"sklearn.metrics._dist_metrics.{name}Distance64" for name in _DISTANCES),
        "sklearn.metrics._scorer._PassthroughScorer",
        "sklearn.model_selection._split.KFold",
        "sklearn.model_selection._split.StratifiedKFold",
        "sklearn.neighbors._ball_tree.BallTree",
        "sklearn.neighbors._kd_tree.KDTree",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
        "sklearn.tree._tree.Tree",
        "sklearn.utils._bunch.Bunch",
        "sklearn.utils.validation.check_array",  # of categories in gradient boosting by histograms
    )
)
READERS = "sklearn.feature_extraction.text."  # public, but open the files that a model names


def written(estimator: Any) -> bytes:
    """Returns an estimator as a file of skops; DataError where `loaded` would not take it."""
    from skops import io

    content = bytes(io.dumps(estimator))
    _expect_trusted(content)
    return content


def loaded(content: bytes) -> Any:
    """Returns the estimator of a file of skops; DataError where it holds what is not trusted."""
    from skops import io

    _expect_trusted(content)
    return io.loads(content, trusted=sorted(TRUSTED))


def _expect_trusted(content: bytes) -> None:
    from skops import io

    strange = sorted(set(io.get_untrusted_types(data=content)) - TRUSTED)
    strange += sorted(name for name in _named(content) if name.startswith(READERS))
    if strange:
        raise DataError(
            f"the model holds {', '.join(strange)}, which a version does not load; take estimators of "
            f"scikit-learn that hold none, and ufuncs of NumPy as functions"
        )


def _named(content: bytes) -> set[str]:
    """Returns the names of all that a file of skops is made of, trusted by skops or not."""
    names: set[str] = set()

    def note(node: dict[str, Any]) -> None:
        names.add(f"{node.get('__module__')}.{node.get('__class__')}")

    with ZipFile(BytesIO(content)) as file:
        json.loads(file.read("schema.json"), object_hook=note)
    return names
