"""Send the same requests to two servers with the same weights, and compare the answers (`plumbline compare`)."""

from plumbline_conformance.differential.compare import Difference, compare
from plumbline_conformance.differential.comparison import run_diff
from plumbline_conformance.differential.probes import Probe, probes

__all__ = ["Difference", "Probe", "compare", "probes", "run_diff"]
