"""Everything that a privacy promise rests on: records, charges and noise, in one room.

A `Release` is what leaves an agent, a `Clipped` sum what bounds a record's influence. `Perturber`
is the only source of noise, `Totals` adds up what releases cost, `NodeRules` are what an
operator allows. The room imports nothing else of this library.
"""

from privet.kernel.accountant import Totals, epsilon_of
from privet.kernel.agent_ledger import AgentLedger
from privet.kernel.bounded import (
    RELATIONS,
    Clipped,
    Clipping,
    Relation,
    clip_rows,
    clipped_sensitivity,
    clipped_sum,
    clipped_term,
    clipped_terms,
    clipped_whole,
)
from privet.kernel.curvature import loss_curvature, public_moduli
from privet.kernel.door import Records, UnNoised
from privet.kernel.drawn import drawn_delta
from privet.kernel.errors import (
    BudgetRefused,
    LedgerError,
    MaskError,
    NoCertificateError,
    NoiseError,
    RecordsError,
    UnsupportedAccountError,
)
from privet.kernel.events import UNITS, Release
from privet.kernel.facts import Facts
from privet.kernel.gaussian import gaussian_epsilon, gaussian_scale
from privet.kernel.ledger import Audit, LedgerFile, RunSpent, Spent
from privet.kernel.masks import Binding, GivenMasks, MaskSource, PairwiseMasks, key_pair
from privet.kernel.node_rules import NodeRules
from privet.kernel.noise import NoiseSource, SeededNoise, SystemNoise
from privet.kernel.perturb import Perturber, checked_spacing, norm_bound, shared_spacing
from privet.kernel.records import (
    ClippableProblem,
    FloatArray,
    Moduli,
    Norm,
    Problem,
    RowIndex,
    best_step,
    can_clip,
    can_clip_batches,
)
from privet.kernel.sensitivity import (
    check_sparsifier,
    dp_iadmm_output_gain,
    fed_pdm_gain,
    fed_plt_contraction,
    gfl_sensitivity,
)
from privet.kernel.sets import SET_NAMES, Box, ConvexSet, L2Ball, Zero, make_set
from privet.kernel.streams import stream
from privet.kernel.told import Told
from privet.kernel.trust import KeyPair, Trust
from privet.kernel.ziggurat import total_variation

__all__ = [
    "RELATIONS",
    "SET_NAMES",
    "UNITS",
    "AgentLedger",
    "Audit",
    "Binding",
    "Box",
    "BudgetRefused",
    "ClippableProblem",
    "Clipped",
    "Clipping",
    "ConvexSet",
    "Facts",
    "FloatArray",
    "GivenMasks",
    "KeyPair",
    "L2Ball",
    "LedgerError",
    "LedgerFile",
    "MaskError",
    "MaskSource",
    "Moduli",
    "NoCertificateError",
    "NodeRules",
    "NoiseError",
    "NoiseSource",
    "Norm",
    "PairwiseMasks",
    "Perturber",
    "Problem",
    "Records",
    "RecordsError",
    "Relation",
    "Release",
    "RowIndex",
    "RunSpent",
    "SeededNoise",
    "Spent",
    "SystemNoise",
    "Told",
    "Totals",
    "Trust",
    "UnNoised",
    "UnsupportedAccountError",
    "Zero",
    "best_step",
    "can_clip",
    "can_clip_batches",
    "check_sparsifier",
    "checked_spacing",
    "clip_rows",
    "clipped_sensitivity",
    "clipped_sum",
    "clipped_term",
    "clipped_terms",
    "clipped_whole",
    "dp_iadmm_output_gain",
    "drawn_delta",
    "epsilon_of",
    "fed_pdm_gain",
    "fed_plt_contraction",
    "gaussian_epsilon",
    "gaussian_scale",
    "gfl_sensitivity",
    "key_pair",
    "loss_curvature",
    "make_set",
    "norm_bound",
    "public_moduli",
    "shared_spacing",
    "stream",
    "total_variation",
]
