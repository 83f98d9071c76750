"""Privacy-critical: the ways in which an agent's records may be touched, each with its proof.

    program     what it does to records                             who uses it
    -------     -----------------------                             -----------
    gradients   noises every clipped gradient                       DP-FedSGD, SCAFFOLD, FedDyn,
                (`gradients`, `steps`, `inexact`)                   DP-IADMM, `private_step`
    iterate     noises hidden steps, and releases the last (`steps`)          Fed-PLT
    drift       takes steps with the public part separate (`drift`)           FedPDM
    output      noises the mean of hidden inner steps (`inexact`)             DP-IADMM
    update      noises the whole difference of un-noised steps (`update`)     DP-FedAvg
    statistics  sums what a bounded function makes of a record, or      analyses
                sums as they are where nothing was charged (`statistics`)
    custom      does what another package vouches for (`custom`)              others

A program states its charge, ``release``, from public numbers; `privet.kernel.door.Records` runs the
one that was charged, and no other.

Not public: names in here may move without notice.
"""
