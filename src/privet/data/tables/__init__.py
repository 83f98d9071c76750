"""The user's own tables: files, what stands in their cells, doubts and faults.

Not public: names in here may move without notice.
"""
