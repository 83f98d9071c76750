"""Cox's model by its definition: loops over deaths and those at risk, for small tables."""

import numpy as np
from scipy.optimize import minimize


class ByDefinition:
    """Rows (x, w, entry, time, event, stratum); likelihood and what follows, by loops."""

    def __init__(self, x, time, event, *, entry=None, weights=None, strata=None, ties="efron"):
        self.x = np.asarray(x, float)
        n = len(self.x)
        self.time, self.event = np.asarray(time, float), np.asarray(event, bool)
        self.entry = np.full(n, -np.inf) if entry is None else np.asarray(entry, float)
        self.weights = np.ones(n) if weights is None else np.asarray(weights, float)
        self.strata = np.zeros(n, int) if strata is None else np.asarray(strata)
        self.ties = ties

    def parts(self):
        """For each part of a time of death: the weight, who dies, and the counts of all rows."""
        for stratum in np.unique(self.strata):
            own = self.strata == stratum
            for t in np.unique(self.time[own & self.event]):
                at_risk = own & (self.entry < t) & (t <= self.time)
                dying = own & self.event & (self.time == t)
                d, heavy = dying.sum(), self.weights[dying].sum()
                if self.ties == "breslow":
                    yield heavy, dying, at_risk.astype(float), d
                    continue
                for part in range(d):
                    yield heavy / d, dying, at_risk - part / d * dying, d

    def loglik(self, b):
        risk = self.weights * np.exp(self.x @ b)
        total = (self.weights * (self.x @ b))[self.event].sum()
        return total - sum(v * np.log((c * risk).sum()) for v, _, c, _ in self.parts())

    def moments(self, b):
        risk = self.weights * np.exp(self.x @ b)
        for v, dying, counts, d in self.parts():
            share = counts * risk / (counts * risk).sum()
            mean = share @ self.x
            yield v, dying, d, counts, share, mean

    def score(self, b):
        total = (self.weights[self.event, None] * self.x[self.event]).sum(axis=0)
        return total - sum(v * mean for v, _, _, _, _, mean in self.moments(b))

    def information(self, b):
        total = np.zeros((self.x.shape[1],) * 2)
        for v, _, _, _, share, mean in self.moments(b):
            away = self.x - mean
            total += v * (away * share[:, None]).T @ away
        return total

    def residuals(self, b):
        """Each row's part of the score, as `survival` in R has them with Efron's ties."""
        found = np.zeros_like(self.x)
        found[self.event] = self.x[self.event]
        for v, dying, d, _, share, mean in self.moments(b):
            parts = d if self.ties == "efron" else 1
            found[dying] -= mean / parts
            found -= v * share[:, None] * (self.x - mean) / self.weights[:, None]
        return found

    def penalised(self, b):
        return self.loglik(b) + np.linalg.slogdet(self.information(b))[1] / 2

    def fit(self, firth=False):
        b = np.zeros(self.x.shape[1])
        if firth:
            found = minimize(
                lambda b: -self.penalised(b),
                b,
                method="Nelder-Mead",
                options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000},
            )
            return found.x
        for _ in range(50):
            step = np.linalg.solve(self.information(b), self.score(b))
            while self.loglik(b + step) < self.loglik(b) - 1e-9:
                step /= 2
            b = b + step
        return b

    def pairs(self, b):
        """Concordant, tied and all pairs of a death and one at risk then who lives on."""
        score = np.round(self.x @ b, 12)
        concordant = tied = every = 0
        for i in np.flatnonzero(self.event):
            t = self.time[i]
            after = (self.time > t) | ((self.time == t) & ~self.event)
            other = after & (self.entry < t) & (self.strata == self.strata[i])
            concordant += (score[i] > score[other]).sum()
            tied += (score[i] == score[other]).sum()
            every += other.sum()
        return [concordant, tied, every]

    def trend(self, b, g):
        """Statistics of proportional hazards against g(time), by column and joint."""
        residuals = {}
        for _, dying, d, _, _, mean in self.moments(b):
            parts = d if self.ties == "efron" else 1
            for i in np.flatnonzero(dying):
                residuals[i] = residuals.get(i, self.x[i]) - mean / parts
        rows = sorted(residuals)
        heavy, away = self.weights[rows], np.array([residuals[i] for i in rows])
        times = g(self.time[rows])
        times = times - heavy @ times / heavy.sum()
        inverse = np.linalg.inv(self.information(b))
        s, spread = (heavy * times) @ away, heavy @ times**2
        single = heavy.sum() * (inverse @ s) ** 2 / (np.diag(inverse) * spread)
        return single, heavy.sum() * s @ inverse @ s / spread
