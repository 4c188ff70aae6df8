"""Translate each API: a reader turns requests into turns, a writer turns events into wire events. No I/O."""
