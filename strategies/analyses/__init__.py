"""Analyses of tables over several sites, as Flower Strategies."""
