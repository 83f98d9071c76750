"""Differential privacy that can be believed: noise, sensitivities, accounts, ledgers and the veto.

The room takes plain numbers (C, b, n, rho, ...) and knows neither problems nor messages. What left
an agent is a `Release`; what it costs is `account`'s business; what an operator allows is `Veto`'s.
"""

from privet.privacy.accountant import Account, account, epsilon_rdp, rdp_curve
from privet.privacy.agent_ledger import AgentLedger
from privet.privacy.errors import (
    BudgetRefused,
    LedgerError,
    MaskError,
    NoCertificateError,
    UnsupportedAccountError,
)
from privet.privacy.events import Release
from privet.privacy.ledger import LedgerFile, Spent
from privet.privacy.masks import Binding, GivenMasks, KeyPair, MaskSource, PairwiseMasks, key_pair
from privet.privacy.mechanisms import (
    gaussian_delta,
    gaussian_log_delta,
    gaussian_scale,
    laplace_scale,
)
from privet.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from privet.privacy.releases import (
    dp_iadmm_release,
    fed_pdm_release,
    fed_plt_release,
    gfl_release,
    unnoised_release,
)
from privet.privacy.sensitivity import (
    check_sparsifier,
    dp_iadmm_sensitivity,
    fed_plt_contraction,
    fed_plt_round,
    gfl_sensitivity,
)
from privet.privacy.sensitivity_dp_iadmm import dp_iadmm_output_gain
from privet.privacy.sensitivity_fed_pdm import Certificate, fed_pdm_certificate
from privet.privacy.veto import Veto

__all__ = [
    "Account",
    "AgentLedger",
    "Binding",
    "BudgetRefused",
    "Certificate",
    "GivenMasks",
    "KeyPair",
    "LedgerError",
    "LedgerFile",
    "MaskError",
    "MaskSource",
    "NoCertificateError",
    "NoiseSource",
    "PairwiseMasks",
    "Release",
    "SeededNoise",
    "Spent",
    "SystemNoise",
    "UnsupportedAccountError",
    "Veto",
    "account",
    "check_sparsifier",
    "dp_iadmm_output_gain",
    "dp_iadmm_release",
    "dp_iadmm_sensitivity",
    "epsilon_rdp",
    "fed_pdm_certificate",
    "fed_pdm_release",
    "fed_plt_contraction",
    "fed_plt_release",
    "fed_plt_round",
    "gaussian_delta",
    "gaussian_log_delta",
    "gaussian_scale",
    "gfl_release",
    "gfl_sensitivity",
    "key_pair",
    "laplace_scale",
    "rdp_curve",
    "unnoised_release",
]
