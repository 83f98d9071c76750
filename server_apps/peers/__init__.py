"""Servers of a graph that exchange their models over HTTPS with mutual TLS.

Not public: names in here may move without notice.
"""
