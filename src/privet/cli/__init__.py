"""The ``privet`` command.

Not public: names in here may move without notice.
"""
