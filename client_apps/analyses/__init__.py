"""Agent halves of the analyses: what a site sums of its own table.

Not public: names in here may move without notice.
"""
