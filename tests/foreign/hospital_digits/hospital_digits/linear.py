"""A linear model: scikit-learn's SGDClassifier, trained over the hospitals."""

from functools import cache

from sklearn.linear_model import SGDClassifier

from privet.client_apps import SklearnModel, client_app

from .data import CLASSES, digits, hospital, place

SETTINGS = {"rho": 10.0}


@cache
def model():
    """Return what hospitals and server must agree on."""
    estimator = SGDClassifier(
        loss="log_loss", alpha=1e-3, learning_rate="constant", eta0=0.03, random_state=0
    )
    return SklearnModel(estimator, digits()[0].shape[1], range(CLASSES))


def start():
    """Return the model before round 1: zeros."""
    return model().arrays()


def problem(number, count):
    """Return what a hospital minimises."""
    return model().problem(*hospital(number, count))


privet = client_app("fed-plt", lambda context: problem(*place(context)))


def train(arrays, number, count, epochs):
    """Return the model after passes over one hospital's images: FedAvg's local training."""
    classifier = model().fitted(arrays)
    for _ in range(epochs):
        classifier.partial_fit(*hospital(number, count), classes=range(CLASSES))
    return SklearnModel(classifier, digits()[0].shape[1], range(CLASSES)).arrays()


def accuracy(arrays):
    """Return the test accuracy of the fitted classifier."""
    _, images, _, labels = digits()
    return model().fitted(arrays).score(images, labels)
