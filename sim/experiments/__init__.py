"""Scripts that regenerate the tables and plots of docs/results."""
