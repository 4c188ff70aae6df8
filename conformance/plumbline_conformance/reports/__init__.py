"""Write reports: one JSON report per run, and all other formats from it."""

from plumbline_conformance.reports.report import Report, UnreadableReport, read_report, report_of

__all__ = ["Report", "UnreadableReport", "read_report", "report_of"]
