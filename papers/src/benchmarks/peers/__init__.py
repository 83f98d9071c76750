"""Other libraries' federations, each played with its public interface by its own interpreter.

Nothing here imports this library: ``python -m peers.play`` runs where a peer is installed.
"""
