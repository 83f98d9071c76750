"""What a run keeps on the disk, and how it goes on from there: checkpoints, journal, resume.

Not public: names in here may move without notice.
"""
