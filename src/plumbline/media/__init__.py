"""Decode images, audio and videos."""
