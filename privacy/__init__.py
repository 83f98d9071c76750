"""Differential privacy: noise, proven sensitivities, accounts, ledgers, node rules.

What leaves an agent is a `Release`; `Perturber` is the only source of its noise; what releases cost
together is `Totals`' business; what an operator allows is `NodeRules`'.
"""

from privet.privacy.accountant import Totals, epsilon_of
from privet.privacy.agent_ledger import AgentLedger
from privet.privacy.errors import (
    BudgetRefused,
    LedgerError,
    MaskError,
    NoCertificateError,
    NoiseError,
    UnsupportedAccountError,
)
from privet.privacy.events import UNITS, Release
from privet.privacy.facts import Facts
from privet.privacy.gaussian import gaussian_epsilon, gaussian_scale
from privet.privacy.ledger import Audit, LedgerFile, RunSpent, Spent
from privet.privacy.masks import Binding, GivenMasks, MaskSource, PairwiseMasks, key_pair
from privet.privacy.node_rules import NodeRules
from privet.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from privet.privacy.perturb import Perturber, checked_spacing, shared_spacing
from privet.privacy.sensitivity import (
    check_sparsifier,
    dp_iadmm_output_gain,
    fed_pdm_gain,
    fed_plt_contraction,
    gfl_sensitivity,
)
from privet.privacy.trust import KeyPair, Trust
from privet.privacy.ziggurat import total_variation

__all__ = [
    "UNITS",
    "AgentLedger",
    "Audit",
    "Binding",
    "BudgetRefused",
    "Facts",
    "GivenMasks",
    "KeyPair",
    "LedgerError",
    "LedgerFile",
    "MaskError",
    "MaskSource",
    "NoCertificateError",
    "NodeRules",
    "NoiseError",
    "NoiseSource",
    "PairwiseMasks",
    "Perturber",
    "Release",
    "RunSpent",
    "SeededNoise",
    "Spent",
    "SystemNoise",
    "Totals",
    "Trust",
    "UnsupportedAccountError",
    "check_sparsifier",
    "checked_spacing",
    "dp_iadmm_output_gain",
    "epsilon_of",
    "fed_pdm_gain",
    "fed_plt_contraction",
    "gaussian_epsilon",
    "gaussian_scale",
    "gfl_sensitivity",
    "key_pair",
    "shared_spacing",
    "total_variation",
]
