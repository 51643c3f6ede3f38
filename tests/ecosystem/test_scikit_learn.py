"""scikit-learn with ``array_api_dispatch``: estimators that get tensors compute on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import pytest

import burn_remote as br

pytestmark = pytest.mark.ecosystem

_random = np.random.default_rng(0)
X = _random.normal(size=(60, 5)) + 3.0
Y = np.abs(_random.normal(size=(40, 5)) + 3.0)
POSITIVE = np.abs(X) + 0.1
CLASSES = np.repeat(np.arange(3), 20)
SHIFTED = X + CLASSES[:, None]
TARGET = X @ _random.normal(size=5) + 0.1 * _random.normal(size=60)
WEIGHTS = _random.uniform(0.5, 1.5, size=60)
GUESSES = np.where(_random.uniform(size=60) < 0.3, 2 - CLASSES, CLASSES)
FEW = np.asarray([0, 1, 2, 1, 0, 2] * 10)
BINARY = (CLASSES > 0).astype(np.int64)
SCORES = _random.uniform(0.05, 0.95, size=60)


def fitted(estimator: Any, x: Any, *y: Any, reads: str, calls: str = "") -> list[Any]:
    """Fit an estimator; return fitted attributes and the results of methods of ``x``."""
    estimator.fit(x, *y)
    results = [getattr(estimator, name) for name in reads.split()]
    return results + [getattr(estimator, name)(x) for name in calls.split()]


def pca(to: Callable[[Any], Any], **options: Any) -> list[Any]:
    from sklearn.decomposition import PCA

    estimator = PCA(n_components=2, random_state=0, **options).fit(to(X))
    reduced = estimator.transform(to(X))
    return [
        estimator.explained_variance_,
        estimator.components_,
        reduced,
        estimator.inverse_transform(reduced),
        estimator.get_covariance(),
        estimator.score_samples(to(X)),
    ]


def preprocessing(name: str, reads: str, **options: Any) -> Callable[[Any], list[Any]]:
    def run(to: Callable[[Any], Any]) -> list[Any]:
        import sklearn.preprocessing

        estimator = getattr(sklearn.preprocessing, name)(**options)
        return fitted(estimator, to(X), reads=reads, calls="transform")

    return run


def scaler_back(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.preprocessing import StandardScaler

    estimator = StandardScaler().fit(to(X), sample_weight=to(WEIGHTS))
    return [estimator.inverse_transform(estimator.transform(to(X))), estimator.var_]


def labels(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.preprocessing import LabelEncoder

    estimator = LabelEncoder().fit(to(CLASSES * 7))
    numbers = estimator.transform(to(CLASSES * 7))
    return [estimator.classes_, numbers, estimator.inverse_transform(numbers)]


def binarized(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.preprocessing import LabelBinarizer

    estimator = LabelBinarizer().fit(to(CLASSES))
    rows = estimator.transform(to(CLASSES))
    return [estimator.classes_, rows, estimator.inverse_transform(rows)]


def centered_kernel(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.preprocessing import KernelCenterer

    return fitted(KernelCenterer(), to(X @ X.T), reads="K_fit_rows_", calls="transform")


def nystroem(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.kernel_approximation import Nystroem

    estimator = Nystroem(kernel="rbf", gamma=0.1, n_components=10, random_state=0)
    return fitted(estimator, to(X), reads="components_", calls="transform")


def ridge(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import Ridge

    estimator = Ridge(alpha=0.5, solver="svd")
    return fitted(estimator, to(X), to(TARGET), reads="coef_ intercept_", calls="predict")


def ridge_cv(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import RidgeCV

    estimator = RidgeCV(alphas=[0.1, 1.0, 10.0])
    return fitted(estimator, to(X), to(TARGET), reads="coef_ alpha_", calls="predict")


def ridge_classifier(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import RidgeClassifier

    estimator = RidgeClassifier(solver="svd")
    reads = "coef_ intercept_"
    calls = "decision_function predict"
    return fitted(estimator, to(SHIFTED), to(CLASSES), reads=reads, calls=calls)


def ridge_classifier_cv(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import RidgeClassifierCV

    estimator = RidgeClassifierCV(alphas=[0.1, 1.0])
    return fitted(estimator, to(SHIFTED), to(CLASSES), reads="coef_", calls="predict")


def logistic(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression(solver="lbfgs", tol=1e-8, max_iter=1000)
    calls = "predict_proba decision_function predict"
    return fitted(estimator, to(SHIFTED), to(CLASSES), reads="coef_ intercept_", calls=calls)


def poisson(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import PoissonRegressor

    estimator = PoissonRegressor(tol=1e-10)
    return fitted(estimator, to(X), to(np.abs(TARGET)), reads="coef_ intercept_", calls="predict")


def discriminant(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    estimator = LinearDiscriminantAnalysis(solver="svd")
    calls = "predict_proba predict decision_function"
    return fitted(estimator, to(SHIFTED), to(CLASSES), reads="coef_ means_", calls=calls)


def naive_bayes(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.naive_bayes import GaussianNB

    calls = "predict_proba predict"
    return fitted(GaussianNB(), to(SHIFTED), to(CLASSES), reads="theta_ var_", calls=calls)


def mixture(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.mixture import GaussianMixture

    means = SHIFTED[[0, 20, 40]]
    # reg_covar is added through a view, which changes nothing here; the documents say so.
    estimator = GaussianMixture(
        3,
        reg_covar=0.0,
        means_init=to(means),
        weights_init=to(np.full(3, 1 / 3)),
        precisions_init=to(np.stack([np.eye(5)] * 3)),
        init_params="random",
        random_state=0,
    )
    return fitted(estimator, to(SHIFTED), reads="means_ weights_", calls="predict_proba predict")


def calibrated(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    estimator = CalibratedClassifierCV(
        LinearDiscriminantAnalysis(), method="temperature", cv=3, ensemble=False
    )
    return fitted(estimator, to(SHIFTED), to(CLASSES), reads="", calls="predict_proba predict")


def pipeline(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    estimator = make_pipeline(StandardScaler(), Ridge(solver="svd"))
    return fitted(estimator, to(X), to(TARGET), reads="", calls="predict")


def grid_search(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    search = GridSearchCV(Ridge(solver="svd"), {"alpha": [0.1, 1.0, 10.0]}, cv=3)
    search.fit(to(X), to(TARGET))
    scores = search.cv_results_["mean_test_score"]
    return [search.best_params_["alpha"], scores, search.predict(to(X))]


def predicted_in_folds(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import cross_val_predict

    return [cross_val_predict(Ridge(solver="svd"), to(X), to(TARGET), cv=3)]


def split(to: Callable[[Any], Any]) -> list[Any]:
    from sklearn.model_selection import train_test_split

    return list(train_test_split(to(X), to(TARGET), to(CLASSES), random_state=0))


def metric(name: str, *arrays: Any, **options: Any) -> Callable[[Any], list[Any]]:
    def run(to: Callable[[Any], Any]) -> list[Any]:
        import sklearn.metrics

        return [getattr(sklearn.metrics, name)(*(to(one) for one in arrays), **options)]

    return run


def pairs(name: str, *arrays: Any) -> Callable[[Any], list[Any]]:
    def run(to: Callable[[Any], Any]) -> list[Any]:
        import sklearn.metrics.pairwise

        return [getattr(sklearn.metrics.pairwise, name)(*(to(one) for one in arrays))]

    return run


Case = Callable[[Callable[[Any], Any]], list[Any]]
ESTIMATORS: dict[str, Case] = {
    "PCA, full": lambda to: pca(to, svd_solver="full"),
    "PCA, whitened": lambda to: pca(to, svd_solver="full", whiten=True),
    "PCA, covariance_eigh": lambda to: pca(to, svd_solver="covariance_eigh"),
    "PCA, randomized": lambda to: pca(
        to, svd_solver="randomized", power_iteration_normalizer="QR", iterated_power=20
    ),
    "Binarizer": preprocessing("Binarizer", "", threshold=3.0),
    "KernelCenterer": centered_kernel,
    "LabelBinarizer": binarized,
    "LabelEncoder": labels,
    "MaxAbsScaler": preprocessing("MaxAbsScaler", "max_abs_ scale_"),
    "MinMaxScaler": preprocessing("MinMaxScaler", "data_min_ data_max_ scale_"),
    "Normalizer, l1": preprocessing("Normalizer", "", norm="l1"),
    "Normalizer, l2": preprocessing("Normalizer", "", norm="l2"),
    "PolynomialFeatures": preprocessing("PolynomialFeatures", "", degree=3),
    "StandardScaler": preprocessing("StandardScaler", "mean_ var_ scale_"),
    "StandardScaler, weighted and back": scaler_back,
    "Nystroem": nystroem,
    "Ridge": ridge,
    "RidgeCV": ridge_cv,
    "RidgeClassifier": ridge_classifier,
    "RidgeClassifierCV": ridge_classifier_cv,
    "LogisticRegression": logistic,
    "PoissonRegressor": poisson,
    "LinearDiscriminantAnalysis": discriminant,
    "GaussianNB": naive_bayes,
    "GaussianMixture": mixture,
    "CalibratedClassifierCV": calibrated,
    "Pipeline": pipeline,
    "GridSearchCV": grid_search,
    "cross_val_predict": predicted_in_folds,
    "train_test_split": split,
}
METRICS: dict[str, Case] = {
    "accuracy_score": metric("accuracy_score", CLASSES, GUESSES),
    "balanced_accuracy_score": metric("balanced_accuracy_score", CLASSES, GUESSES),
    "brier_score_loss": metric("brier_score_loss", BINARY, SCORES),
    "cohen_kappa_score": metric("cohen_kappa_score", CLASSES, GUESSES),
    "confusion_matrix": metric("confusion_matrix", CLASSES, GUESSES),
    "d2_brier_score": metric("d2_brier_score", BINARY, SCORES),
    "d2_log_loss_score": metric("d2_log_loss_score", BINARY, SCORES),
    "d2_tweedie_score": metric("d2_tweedie_score", TARGET, TARGET * 0.9),
    "det_curve": metric("det_curve", BINARY, SCORES),
    "explained_variance_score": metric("explained_variance_score", TARGET, TARGET * 0.9),
    "f1_score": metric("f1_score", CLASSES, GUESSES, average="macro"),
    "fbeta_score": metric("fbeta_score", CLASSES, GUESSES, beta=2, average="micro"),
    "hamming_loss": metric("hamming_loss", CLASSES, GUESSES),
    "jaccard_score": metric("jaccard_score", CLASSES, GUESSES, average="macro"),
    "log_loss": metric("log_loss", BINARY, SCORES),
    "max_error": metric("max_error", TARGET, TARGET * 0.9),
    "mean_absolute_error": metric("mean_absolute_error", TARGET, TARGET * 0.9),
    "mean_absolute_percentage_error": metric(
        "mean_absolute_percentage_error", TARGET, TARGET * 0.9
    ),
    "mean_gamma_deviance": metric("mean_gamma_deviance", POSITIVE[:, 0], POSITIVE[:, 1]),
    "mean_pinball_loss": metric("mean_pinball_loss", TARGET, TARGET * 0.9),
    "mean_poisson_deviance": metric("mean_poisson_deviance", POSITIVE[:, 0], POSITIVE[:, 1]),
    "mean_squared_error": metric("mean_squared_error", TARGET, TARGET * 0.9),
    "mean_squared_log_error": metric("mean_squared_log_error", POSITIVE[:, 0], POSITIVE[:, 1]),
    "mean_tweedie_deviance": metric("mean_tweedie_deviance", TARGET, TARGET * 0.9),
    "median_absolute_error": metric("median_absolute_error", TARGET, TARGET * 0.9),
    "multilabel_confusion_matrix": metric("multilabel_confusion_matrix", CLASSES, GUESSES),
    "precision_recall_curve": metric("precision_recall_curve", BINARY, SCORES),
    "precision_score": metric("precision_score", CLASSES, GUESSES, average="macro"),
    "r2_score": metric("r2_score", TARGET, TARGET * 0.9),
    "recall_score": metric("recall_score", CLASSES, GUESSES, average="weighted"),
    "roc_auc_score": metric("roc_auc_score", BINARY, SCORES),
    "roc_curve": metric("roc_curve", BINARY, SCORES),
    "root_mean_squared_error": metric("root_mean_squared_error", TARGET, TARGET * 0.9),
    "root_mean_squared_log_error": metric(
        "root_mean_squared_log_error", POSITIVE[:, 0], POSITIVE[:, 1]
    ),
    "zero_one_loss": metric("zero_one_loss", CLASSES, GUESSES),
    **{
        name: pairs(name, POSITIVE, Y)
        for name in (
            "additive_chi2_kernel",
            "chi2_kernel",
            "cosine_distances",
            "cosine_similarity",
            "euclidean_distances",
            "laplacian_kernel",
            "linear_kernel",
            "manhattan_distances",
            "pairwise_distances",
            "polynomial_kernel",
            "rbf_kernel",
            "sigmoid_kernel",
        )
    },
    "paired_cosine_distances": pairs("paired_cosine_distances", X, POSITIVE),
    "paired_euclidean_distances": pairs("paired_euclidean_distances", X, POSITIVE),
}


# With NumPy's arrays, scikit-learn takes SciPy's solver, which stops elsewhere.
OWN_SOLVERS = {"LogisticRegression", "PoissonRegressor"}


@pytest.mark.parametrize("name", [*ESTIMATORS, *METRICS])
def test_scikit_learn_computes_on_the_device_what_it_computes_with_numpy(
    name: str, box: br.Device
) -> None:
    from sklearn import config_context

    case = (ESTIMATORS | METRICS)[name]
    if name in OWN_SOLVERS:
        with config_context(array_api_dispatch=True):
            expected = flat([np.asarray(one) for one in case(array_api_strict.asarray)])
    else:
        expected = flat(case(np.asarray))
    with config_context(array_api_dispatch=True):
        results = flat(case(lambda array: br.tensor(array, device=box)))
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        elements = result.numpy() if isinstance(result, br.Tensor) else result
        np.testing.assert_allclose(elements, wanted, rtol=1e-5, atol=1e-7)


def flat(results: Any) -> list[Any]:
    """Return results without the tuples that some functions return."""
    return [
        one
        for result in results
        for one in (flat(result) if isinstance(result, tuple) else [result])
    ]
