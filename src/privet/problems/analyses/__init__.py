"""Analyses of tables over several sites: what a site sums, and the step that the sums make.

Not public: names in here may move without notice.
"""
