"""Who takes part in a run: agents are asked, admitted, turned away, and waited for.

Not public: names in here may move without notice.
"""
