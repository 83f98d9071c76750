"""Agent halves of the algorithms that the papers compare themselves with.

Not public: names in here may move without notice.
"""
