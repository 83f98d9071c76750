"""A Flower app of the shape of Flower's own PyTorch quickstart, on data that need no download."""
