"""Declare the server's options once, and read them from the command line, the environment and a file."""

from plumbline.server.settings.settings import OPTIONS, Settings
from plumbline.server.settings.values import read_loras
from plumbline_conformance.console.options import Option, OptionError, SettingsError

__all__ = [
    "OPTIONS",
    "Option",
    "OptionError",
    "Settings",
    "SettingsError",
    "read_loras",
]
