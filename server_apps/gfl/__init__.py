"""What a run over a graph of servers is measured by and what it costs in privacy."""
