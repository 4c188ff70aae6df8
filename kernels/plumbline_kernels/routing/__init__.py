"""Choose the experts of tokens and group rows by expert, for the Triton version of `experts.mix`.

_triton    the kernels
"""

from plumbline_kernels.routing._triton import (
    Groups,
    add_results,
    compile_cases,
    group,
    route_and_group,
    takes,
)
from plumbline_kernels.routing.rules import Routing

__all__ = ["Groups", "Routing", "add_results", "compile_cases", "group", "route_and_group", "takes"]
