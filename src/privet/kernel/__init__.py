"""Everything that a privacy promise rests on: records, charges and noise, in one room.

A `Release` is what leaves an agent, a `Clipped` sum what bounds a record's influence. `Perturber`
is the only source of noise, `Totals` adds up what releases cost, `NodeRules` are what an
operator allows. The room imports nothing else of this library.
"""

from .accountant import Totals, epsilon_of
from .agent_ledger import AgentLedger
from .bounded import (
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
from .curvature import loss_curvature, public_moduli
from .door import Records, UnNoised
from .drawn import drawn_delta
from .errors import (
    BudgetRefused,
    LedgerError,
    MaskError,
    NoCertificateError,
    NoiseError,
    RecordsError,
    UnsupportedAccountError,
)
from .events import UNITS, Release
from .facts import Facts
from .gaussian import gaussian_epsilon, gaussian_scale
from .ledger import Audit, LedgerFile, RunSpent, Spent
from .masks import Binding, GivenMasks, MaskSource, PairwiseMasks, key_pair
from .node_rules import NodeRules
from .noise import NoiseSource, SeededNoise, SystemNoise
from .perturb import Perturber, checked_spacing, norm_bound, shared_spacing
from .records import (
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
from .sensitivity import (
    check_sparsifier,
    dp_iadmm_output_gain,
    fed_pdm_gain,
    fed_plt_contraction,
    gfl_sensitivity,
)
from .sets import SET_NAMES, Box, ConvexSet, L2Ball, Zero, make_set
from .streams import stream
from .told import Told
from .trust import KeyPair, Trust
from .ziggurat import total_variation

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
