"""Derive faults from recorded answers and the contract's schemas, and judge each of them offline."""
