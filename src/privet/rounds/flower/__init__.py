"""A run as a Strategy of Flower: its base class, constructor arguments and wrappers.

Not public: names in here may move without notice.
"""
