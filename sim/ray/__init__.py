"""The engine that runs a federation in Ray actors; Ray itself is imported when one starts.

Not public: names in here may move without notice.
"""
