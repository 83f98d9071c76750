"""PyTorch modules: a module as a problem, and the clipped gradients of its single examples.

Not public: names in here may move without notice.
"""
