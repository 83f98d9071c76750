"""Records in a database: an operator's cohorts, how they are read, and the rows of a run.

Not public: names in here may move without notice.
"""
