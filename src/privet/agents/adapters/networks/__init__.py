"""PyTorch modules: a module as a problem, and the clipped gradients of its single examples."""
