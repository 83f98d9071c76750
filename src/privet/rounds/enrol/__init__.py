"""Who takes part in a run: the agents by name, and those that come back.

Not public: names in here may move without notice.
"""
