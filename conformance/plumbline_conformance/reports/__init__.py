"""What a run becomes: one JSON report, and everything else made from that alone."""

from plumbline_conformance.reports.model import Report, UnreadableReport, read_report, report_of

__all__ = ["Report", "UnreadableReport", "read_report", "report_of"]
