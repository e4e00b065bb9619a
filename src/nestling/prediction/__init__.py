"""Predictions with their uncertainty, scores over data sets, and calibration after training."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.prediction.bounds import Bounds, normal_bounds, standard_error
    from nestling.prediction.calibrate import calibrate, conformal_thresholds, coverages_of, fit_temperature
    from nestling.prediction.calibration import Calibration
    from nestling.prediction.detection import Detection
    from nestling.prediction.evaluate import check_repeatable, evaluate, pairs
    from nestling.prediction.forward_passes import OUTPUT_SAMPLES, By, CutLike, passes
    from nestling.prediction.likelihood import Likelihood
    from nestling.prediction.likelihoods import (
        LIKELIHOODS,
        Bernoulli,
        Categorical,
        Gaussian,
        HeteroscedasticGaussian,
        likelihood_for,
        likelihood_from,
        likelihood_named,
    )
    from nestling.prediction.options import LikelihoodName
    from nestling.prediction.predict import predict
    from nestling.prediction.predictions import NO_THRESHOLDS, ClassPrediction, Prediction, RegressionPrediction
    from nestling.prediction.reliability import Reliability
    from nestling.prediction.scores import ClassScores, RegressionScores, Scores, SetScores

__all__ = [
    "Bernoulli",
    "Calibration",
    "Categorical",
    "ClassPrediction",
    "ClassScores",
    "Detection",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Prediction",
    "RegressionPrediction",
    "RegressionScores",
    "Reliability",
    "Scores",
    "SetScores",
    "calibrate",
    "evaluate",
    "likelihood_from",
    "likelihood_named",
    "predict",
]

imports_lazily(__name__)
