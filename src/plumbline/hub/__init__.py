"""Models by name: what names mean, which files of a repository are a model, downloads and the cache.

What the files contain is not known here; loading reads them.
"""
