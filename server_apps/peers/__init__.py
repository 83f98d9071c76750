"""Servers of a graph that exchange their models over HTTPS with mutual TLS."""
