"""Speak HTTP: middleware, frames of streams, keep-alives, and failures as API errors."""
