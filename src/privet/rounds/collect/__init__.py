"""How the uploads of a round are asked for, checked and taken: one by one, as tasks, masked.

Not public: names in here may move without notice.
"""
