"""Declare the server's options once, and read them from the command line, the environment and a file."""

from plumbline.server.settings.options import Option, OptionError, SettingsError
from plumbline.server.settings.settings import OPTIONS, Settings
from plumbline.server.settings.values import read_loras

__all__ = [
    "OPTIONS",
    "Option",
    "OptionError",
    "Settings",
    "SettingsError",
    "read_loras",
]
