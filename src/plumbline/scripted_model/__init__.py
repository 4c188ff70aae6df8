"""Train a tiny checkpoint to reproduce scripted answers exactly, to test any server with known outputs."""
