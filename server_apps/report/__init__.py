"""The report of finished runs: one HTML page, and tables as CSV or Parquet."""

from .assemble import ReportError, page, write_report

__all__ = ["ReportError", "page", "write_report"]
