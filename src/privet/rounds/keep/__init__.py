"""What a run keeps on the disk to go on from: checkpoints, chains of them, the journal.

Not public: names in here may move without notice.
"""
