"""DP-FedAvg with sparse, coded uploads, for Privet.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language
Models" (2018), Algorithm 1, with noise at every agent and rand-k after it. With Q local steps from
x that end in w_i, and P_i the k coordinates of a public seed of (run, agent, round),

    u_i = min(1, C / ||w_i - x||) (w_i - x) + N(0, sigma^2 I),
    x_j <- x_j + mean of (u_i)_j over the agents i with j in P_i, and no move where there are none.
"""

from privet.core import Algorithm

ALGORITHM = Algorithm(
    "sparse-fedavg", "sparse_fedavg.strategy:SparseFedAvg", "sparse_fedavg.agent:Agent"
)
