"""Run `python -m plumbline_conformance.cli`: the judge's commands without the server's."""

import sys

from plumbline_conformance.cli.dispatch import main

sys.exit(main())
