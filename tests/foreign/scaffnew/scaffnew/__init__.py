"""Scaffnew, the federated form of ProxSkip, for Privet.

K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably
Lead to Communication Acceleration! Finally!" (2022), Algorithm 2. A coin of probability p ends the
local steps w <- w - gamma (grad f_i(w) - h_i) from w = x; then x <- mean of w_i and
h_i <- h_i + (p / gamma) (x - w_i). An absent agent makes up for this with the x it sees next.
"""

from privet.core import Algorithm

ALGORITHM = Algorithm("scaffnew", "scaffnew.strategy:Scaffnew", "scaffnew.agent:Agent")
