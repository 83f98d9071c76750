"""Privacy-critical: the closed list of the texts that a private node sends about a failure.

None has a number, a name or a path in it. The line that says more, with lengths, counts, shapes,
names of columns and files, is for the node's own log. Which text it is follows from the message,
the node's configuration, the model and the code: what records cause is `Told.DATA` where they are
read, and `Told.WORK` in the work itself, `Told.VMAP` where a module or its loss fails. That they
make a task fail at all is seen.

An error carries its text: as its own, where that is one of the list, or as its ``told``.
"""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class Told(StrEnum):
    """A text that may leave a private node; its name is the code."""

    # What no other text fits, by the kind of error.
    DATA = "its data cannot be used; its own log says why"
    WORK = "its task failed; its own log says why"
    MESSAGE = "the message cannot be used; its own log says why"
    NUMBERS = "the message holds numbers that are too large or not finite"
    SETTING = "a setting cannot be used; its own log says which, and what to do"
    PROOF = "no privacy is proven for these settings; its own log says why"
    ROSTER = "the roster of the secure sum cannot be used; its own log says why"
    RULES = "its own rules do not allow this reply; its own log says why"

    # The rules of a node's operator.
    REPLACE_ONE = (
        "its relation is 'replace-one', which a node has whose config names none: set one relation "
        "in the run config and in the node config"
    )
    ADD_REMOVE = (
        "its relation is 'add-remove': set one relation in the run config and in the node config"
    )
    REPLACE_AGENT = (
        "its relation is 'replace-agent': set one relation in the run config and in the node config"
    )
    SEEDED_NOISE = "this node refuses noise-seed: seeded noise can be predicted"
    GIVEN_NOISE = "this node refuses noise that is supplied from outside"
    GIVEN_MASKS = "the masks of the secure sum are handed in from outside"
    SENSITIVITY = "this node refuses a sensitivity computed from the data: its noise scale leaks"
    NO_CLIP = "this node refuses to train without clipping"
    MAX_CLIP = "clip is above this node's max-clip"
    NO_NOISE = "this node sends nothing without noise"
    MAX_STEPS = "the local steps in a round are above this node's max-steps"
    MIN_NOISE = "the noise is below this node's min-noise"
    BUDGET = "budget: this reply would bring the node above its max-epsilon"
    DELTA = "budget: its delta lets a run publish a record as it is; its own log says what to take"
    LEDGER = "budget: this node's ledger cannot take the charge"
    TARGET = (
        "target-epsilon: this reply would bring the run above it; dropouts > 0 plans for repeated "
        "attempts"
    )
    TRUST = "trust: this node's keys cannot be read or used"
    MASKS = "trust: this node cannot write down which masks it uses"
    PAUSE = "min-seconds-between: this node computes its next task later"
    TOO_LONG = "the task took longer than this node's reply-seconds"
    ARRIVALS = (
        "this run folds uploads as they come, so the time of a reply must not depend on the "
        "records: a problem or loop of your own needs reply-seconds (docs/privacy-proofs.md)"
    )
    POISSON_TIME = (
        "batch = 'poisson': a step takes longer the more records take part, so a problem or loop "
        "of your own needs reply-seconds (docs/privacy-proofs.md)"
    )
    EXPIRED = (
        "the message expired before this node took it up, by the node's clock: nothing is computed "
        "or charged"
    )
    EVALUATION = "declines evaluation: it would be an un-noised release"
    QUERY = "declines a query of its own app: it would be an un-noised release"
    ANALYSES = "allow-analyses: this node answers no analysis"
    NOISED_ALONE = (
        "this node has a budget: of analyses it answers noised descriptions and curves alone"
    )
    NO_BUDGET = (
        "a noised analysis needs a budget, and this node has none: ask its operator to set "
        "max-epsilon"
    )
    SUMS_ONLY = "sums-only: this node answers analyses in secure sums alone: set secure-sum = true"
    POOLED_BASELINE = (
        "pooled-baseline: this node's sums over those at risk at each time stay where they are: "
        "set baseline = site, or ask its operator to set pooled-baseline = true"
    )
    FEW_RECORDS = "min-records: this node has fewer rows that are complete for this analysis"
    SMALL_CELL = (
        "min-cell: this analysis would show a cell of fewer records than this node shows; its own "
        "log says which column"
    )
    SCHEMA = "its schema states other columns than the noised sum has; its own log says which"
    HORIZON = "min-cell: curves of this node need a public horizon: set horizon"
    MANY_TERMS = "this analysis has more than a third as many terms as this node has rows"
    MANY_CELLS = (
        "min-cell: the columns of this analysis have more cells than this node counts: take terms "
        "out"
    )
    MOST_ANALYSES = "max-analyses: this node has answered as many analyses as its operator lets it"
    MOST_ANSWERS = "this node has answered as many rounds of this analysis as any needs"
    ANALYSES_FILE = "analyses-path: this node cannot write down which analyses it answers"
    RULES_UNREADABLE = "its node config cannot be used; its own log names the key"
    STATE = "its state-path cannot be used; its own log says why"
    RUN_DATA = (
        "data-path of the run config is not read on this node: ask its operator to set data-path, "
        "or allow-run-data = true, in the node config"
    )
    NO_DATABASE = (
        "dataset = sql: Flower's own simulation reads no database: simulate with privet run, or "
        "deploy nodes whose own config names a file of cohorts"
    )
    COHORT = "cohort: this run names none of the cohorts that this node's operator has named"
    DATABASE = (
        "its cohort cannot be read from its database, and nothing is charged; its own log says "
        "why, and the next message has it tried again"
    )
    PREPARATION = (
        "a private run refuses data-dependent preprocessing; its own log says which: against a "
        "scaling by its own rows it needs schema, a file of public ranges (privet data FILE "
        "--schema OUT writes a first one)"
    )
    SCALING = (
        "its own rows give the scaling or the categories of its features, which a private run and "
        "a secure sum do not agree on: it needs schema, a file of public ranges (privet data FILE "
        "--schema OUT writes a first one)"
    )
    ORDER = (
        "batch = 'cyclic': the rows of a query may come in an order that follows their values, so "
        "that one record would move others to another batch"
    )
    ENCODING = "its data are not encoded as the run's agents have agreed: it enrols again"
    PERSONS = (
        "person-column: a person has more rows than rows-per-person, for which epsilon is stated: "
        "declare a larger public bound, or take rows out"
    )
    PARTITION = "node config has no partition-id: start the SuperNode with one"

    # The message, and the ClientApp that answers it.
    CONTRACT = "enrolment question is not of this version of the contract"
    ALGORITHM = "serves another algorithm than the message names"
    VERSION = "speaks another version of the algorithm than the message"
    MOD = (
        "a mod of Flower's for privacy or secure aggregation is around its ClientApp, and protects "
        "nothing here: take it off; its own log says what to use"
    )
    MASKED_BEFORE = "secure sum: this node has masked an upload of this attempt before"
    SIGNED_BEFORE = "secure sum: this node has signed a roster of this attempt before"
    UNSIGNED = "secure sum: a peer whose key this node has pinned has not signed this roster"
    OTHER_LIST = "secure sum: this node has signed a list of survivors of this sum before"
    SHARED_BEFORE = "secure sum: this node has given its shares of this sum before"
    MASK_ONCE = "secure sum: asked for an attempt again; a mask is used once"
    DIFFERENCE = (
        "secure sum: this attempt would reveal the upload of one agent as the difference of two "
        "sums"
    )
    SUM_TERMS = "secure-sum and roster do not go together in this instruction"
    IN_THE_CLEAR = "was enrolled for a secure sum and is asked for an upload in the clear"

    OVERFLOW = "numbers of its upload are not finite, or too large for the secure sum"

    # A training loop of one's own.
    OPENED_ONCE = (
        "a private round is opened once, with the message that a handler of participant.app() was "
        "given"
    )
    REPLY_ALONE = "a private agent sends what local.reply() returned alone"
    HANDLER = "a handler returned no message: return that of local.reply()"
    NOT_SENT = (
        "a training message of Privet has no record 'arrays', and 'config' with a train_config "
        "alone: participant.round(...) gives the model its start, local.step_size the length of a "
        "step"
    )
    METRICS = "reply(metrics=...) of a private agent would be an un-noised release"
    PERSONAL = (
        "personal: layers that stay with an agent are trained without noise, and all that a "
        "private round sends depends on them: make the participant without them"
    )
    BUFFERS = (
        "buffers = 'average' would send un-noised statistics of the records: use 'local' or "
        "'constant', or GroupNorm"
    )
    CUSTOM_LOOP = (
        "this algorithm does its local steps itself, or needs more than they give: a custom loop "
        "cannot replace them"
    )
    MODULE = "a private round trains a torch.nn.Module"
    FROZEN = (
        "a parameter is frozen in this round: a private round trains all that it sends; freeze it "
        "where the participant is made"
    )
    CLIP_AND_NOISE = "a custom training loop needs a clip with its noise, or neither"
    STEP_NEEDS_NOISE = "private_step() needs a run with noise and a clip"
    WHOLE_UPDATE = (
        "this algorithm clips the whole update, and no gradient: train without private_step(), as "
        "under FedAvg"
    )
    PRIVATE_STEP = "a private round steps with private_step(), not with correct()"
    HOOK = "hook = True is not for private rounds: private_step corrects the gradients"
    STEPS = (
        "a private round takes exactly local.steps private steps, and this loop took another number"
    )
    DRAWS = "the noise that was asked for is not what was charged, or what it hides moves further"
    COPIED = "the noise of a release is not copied: its draws were charged once"
    MOVED = "the model was changed outside of private_step, which no noise covers"
    BATCH = (
        "a private step takes a batch of 1 to batch-size examples (with batch = 'full', 'poisson' "
        "or 'cyclic', all that num-examples declares), and was given another number"
    )
    TURNS = (
        "batch = 'cyclic': each example has its turn, and the node holds another number than "
        "num-examples declares: declare the number that it holds"
    )
    SAME_DATA = (
        "batch = 'poisson': a private step is given the whole data set, every time the same, and "
        "was given two of different lengths"
    )
    TENSORS = "the tensors of a private step's batch have one row an example, and these do not"
    BATCH_NORM = (
        "BatchNorm mixes the examples of a batch, so that none can be clipped for itself: use "
        "GroupNorm or LayerNorm"
    )
    MEMORY = (
        "a module or loss keeps what it computes from one example for others, so that none can be "
        "clipped for itself: take the memory out, or use GroupNorm or LayerNorm"
    )
    UNSTEADY = (
        "batch = 'poisson': the module or the loss draws or counts from one call to the next, so "
        "that whether one record takes part would change what the others add: draw and count "
        "outside, or use batch = 'sample'"
    )
    OWN_VMAP = (
        "an autograd.Function or custom operator has a vmap of its own, which may mix examples: "
        "set generate_vmap_rule = True in its place"
    )
    VMAP = (
        "the model or loss does not run under torch.func.vmap; its own log says which layer, and "
        "participant.check(...) finds it before the first round"
    )
    CLASS_WEIGHTS = (
        "class weights cancel in a batch of one example: multiply them to the losses, "
        "(weight[targets] * cross_entropy(..., reduction='none')).mean()"
    )
    NO_MEAN = (
        "the loss of several examples is not the mean of their losses (class weights, ignored "
        "targets, a sum): write it as the mean of a loss of each example; participant.check(...) "
        "finds it before the first round"
    )
    OPACUS = (
        "a module or optimizer of Opacus in a private round: its noise is not what was charged; "
        "give private_step the plain module and optimizer"
    )
    KEPT_OPTIMIZER = (
        "keep_optimizer = True: in a private round an optimizer steps in private_step alone, as "
        "its state would be that of gradients without noise"
    )


OF_RELATION = {
    "replace-one": Told.REPLACE_ONE,
    "add-remove": Told.ADD_REMOVE,
    "replace-agent": Told.REPLACE_AGENT,
}
"""What a node says to a run of another relation, by its own."""


def told_by(error: BaseException) -> Told | None:
    """Return the text of the list that an error carries, None where it carries none."""
    for text in (getattr(error, "told", ""), *error.args[:1]):
        if isinstance(text, Told):
            return text
    return None
