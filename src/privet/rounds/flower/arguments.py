"""The arguments of all strategies, written by ``make keys``: do not edit.

Those that are run-config keys come from the fields of ``RunOptions``, the others from ``OBJECTS``.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from ..hooks import Monitor
from ..participation import Participation
from .options import Aggregate


class RunArguments(TypedDict, total=False):
    """Arguments that all strategies share, beside those of their algorithms; keywords alone.

    Attributes
    ----------
    asynchronous : bool, default False
        fold uploads as they come: a round is a version of the model, and an upload is combined with
        the model that its agent was sent
    buffer : int | "auto", default "auto"
        uploads that make a version; auto is a tenth of the agents
    max_delay : int | "none", default "none"
        versions after which an agent is waited for, until its task is round-timeout seconds old and
        is withdrawn; none never waits for one
    max_uploads : int | "none", default "none"
        uploads of an agent in the whole run, at most; none is not for private runs
    late_replies : {"drop", "fold"}, default "drop"
        what becomes of a reply that comes after round-timeout: it is lost, or folded in a later
        round
    speeds : str, default ""
        simulation: how long agents take: equal, lognormal, stragglers, or a CSV file with the
        columns agent and seconds (of its tasks in order, repeated), or agent, away-from and
        back-at; empty: rounds take no time
    speed_spread : float, default 0.5
        deviation of the logarithm of the agents' factors
    speed_jitter : float, default 0.2
        deviation of the logarithm of a task's time
    slow_share : float, default 0.1
        share of the agents that are slow
    slow_factor : float, default 10.0
        how many times as long slow agents take
    task_latency : float, default 10.0
        seconds of a task without its steps
    step_seconds : float, default 1.0
        seconds of a local step
    absences : float, default 0.0
        probability that a task ends with an absence
    absence_seconds : float, default 150.0
        mean length of an absence
    server_optimizer : {"none", "momentum", "adam", "yogi"}, default "none"
        what the server makes of a round's step: none takes it as it is
    server_learning_rate : float, default 1.0
        eta of the server's optimizer; adam and yogi need a small one
    server_momentum : float, default 0.9
        beta of the server's optimizer
    server_beta_2 : float, default 0.99
        decay of adam's and yogi's v
    server_tau : float, default 0.001
        adaptivity of adam and yogi: the least they divide by
    robust : {"none", "trimmed", "median", "centred-clipping"}, default "none"
        what a round's uploads are folded by, so that a few wrong ones cannot move it at will
    faulty : int, default 1
        how many uploads of a round may be wrong, at most
    robust_mixing : bool, default False
        whether each upload is replaced by the mean of those nearest to it before that
    num_agents : int | "auto", default "auto"
        number of agents to wait for; auto starts with those already connected
    min_agents : int, default 1
        a round with fewer replies than this fails
    patience : float, default 600.0
        seconds for which a failed round is retried; 0 ends the run at once
    wait_timeout : float, default 60.0
        seconds to wait for num-agents to connect
    round_timeout : float, default 600.0
        seconds to wait for the replies of a round
    seed : int, default 0
        seed of all random draws except privacy noise
    secure_sum : bool, default False
        agents mask their uploads: the server sees sums over at least three of them; an attempt at
        one takes half of the round-timeout at most
    sum_threshold : int | "all", default "all"
        agents that are enough to open a secure sum when others drop out, more than half of all and
        one (of more than 100 agents: of the 64 that each draws); all asks those that are left for
        another upload
    recover_by_name : {"auto", "yes", "no", "node-key"}, default "auto"
        who continues for an agent whose node is gone: the next node of its name (yes), that node
        from scratch (no), nobody else (node-key); auto: yes in simulation, else no
    penalty_c : float, default 1.0
        scikit-learn's C on the pooled rows, where regularizer-weight is automatic: 1 / C times the
        penalty of C = 1
    on_divergence : {"warn", "stop"}, default "warn"
        if the residual or the loss blows up: go on, or end the run
    participation : Participation | None, default None
        who takes part in a round; all by default
    fraction_evaluate : float, default 0.0
        share of the agents asked for a federated evaluation after each round, as in FedAvg; 0 asks
        none. Agents in a private run decline: an evaluation is an un-noised release
    agent_weights : {"equal", "examples"}, default "equal"
        what an agent counts. Equal: the objective is sum_i f_i + h, with f_i a mean over the
        agent's n_i examples. Examples: it is sum_i (n_i / n) f_i + h with n the mean of the n_i in
        the first round, as FedAvg weighs them; the gradients of agent i are that much longer, and
        every method reaches what it then reaches on these f_i. Not in private runs, nor for
        dp-iadmm, whose f_i count examples alike in any case. Units of gfl remain equal
    monitor : Monitor | None, default None
        ``(round, models) -> {"loss": ..., "accuracy": ..., "stationarity": ...}`` on the server
    fraction_train : float | None, default None
        share of the agents that take part in a round, in place of ``participation``; > 0
    min_train_nodes : int, default 1
        the least number of agents of a round, if that many are enrolled; FedAvg's default is 2
    min_evaluate_nodes : int, default 1
        the least number of agents of a federated evaluation, if ``fraction_evaluate`` > 0; FedAvg's
        default is 2
    min_available_nodes : int, default 0
        nodes that must be connected before a round begins; waits ``wait_timeout`` for them
    weighted_by_key : str, default "num-examples"
        the metric that weighs a reply's metrics in averages
    arrayrecord_key : str, default "arrays"
        name of the model's record in an evaluation message
    configrecord_key : str, default "config"
        name of the config's record in an evaluation message. A training message has it where there
        is a ``train_config``; the model travels in Privet's own record
    train_metrics_aggr_fn : Aggregate | None, default None
        ``(list of RecordDict, weighted_by_key) -> MetricRecord`` in place of the weighted mean of
        the metrics that came with uploads
    evaluate_metrics_aggr_fn : Aggregate | None, default None
        the same for the metrics of a federated evaluation
    """

    asynchronous: bool
    buffer: int | Literal["auto"]
    max_delay: int | Literal["none"]
    max_uploads: int | Literal["none"]
    late_replies: Literal["drop", "fold"]
    speeds: str
    speed_spread: float
    speed_jitter: float
    slow_share: float
    slow_factor: float
    task_latency: float
    step_seconds: float
    absences: float
    absence_seconds: float
    server_optimizer: Literal["none", "momentum", "adam", "yogi"]
    server_learning_rate: float
    server_momentum: float
    server_beta_2: float
    server_tau: float
    robust: Literal["none", "trimmed", "median", "centred-clipping"]
    faulty: int
    robust_mixing: bool
    num_agents: int | Literal["auto"]
    min_agents: int
    patience: float
    wait_timeout: float
    round_timeout: float
    seed: int
    secure_sum: bool
    sum_threshold: int | Literal["all"]
    recover_by_name: Literal["auto", "yes", "no", "node-key"]
    penalty_c: float
    on_divergence: Literal["warn", "stop"]
    participation: Participation | None
    fraction_evaluate: float
    agent_weights: Literal["equal", "examples"]
    monitor: Monitor | None
    fraction_train: float | None
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: Aggregate | None
    evaluate_metrics_aggr_fn: Aggregate | None
