"""A Flower app that trains one model over hospitals, each of which sees few of the digits."""
