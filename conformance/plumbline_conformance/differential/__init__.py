"""Send the same requests to two servers with the same weights, and compare the answers (`plumbline compare`)."""

from plumbline_conformance.differential.compare import Difference, compare
from plumbline_conformance.differential.probes import Probe, probes
from plumbline_conformance.differential.run import run_diff

__all__ = ["Difference", "Probe", "compare", "probes", "run_diff"]
