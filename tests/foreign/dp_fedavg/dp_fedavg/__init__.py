"""DP-FedAvg for Privet.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language
Models" (2018), Algorithm 1. Agents take a few local steps from x and send the difference, clipped
to norm C, with noise; x moves by the mean of those who took part. The paper adds the noise to the
mean, on a trusted server; here every agent adds its own.
"""

from privet.core import Algorithm

ALGORITHM = Algorithm("dp-fedavg", "dp_fedavg.strategy:DPFedAvg", "dp_fedavg.agent:Agent")
