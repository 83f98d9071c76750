"""DIANA for Privet: compressed differences of gradients.

K. Mishchenko, E. Gorbunov, M. Takac, P. Richtarik, "Distributed Learning with Compressed Gradient
Differences" (2019), Algorithm 1, without momentum and with rand-k. An agent sends k of the d
coordinates of grad f_i(x) - h_i; with Q = (d/k) times these, and alpha = k/d,

    x <- x - gamma mean of (h_i + Q_i),     h_i <- h_i + alpha Q_i:

at the coordinates that were sent h_i is then the gradient, elsewhere it is as it was.
"""

from privet.core import Algorithm

ALGORITHM = Algorithm("diana", "diana.strategy:Diana", "diana.agent:Agent")
