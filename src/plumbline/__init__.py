"""Plumbline: one contract, a server built from it, and engines for the server."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Read the version when it is asked for: the metadata of packages takes 30 ms to import."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("plumbline-llm")
    except PackageNotFoundError:  # The source tree is on the path without having been installed.
        return "0.0.0"
