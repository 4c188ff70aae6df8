"""Stores to compare with, and a PostgreSQL for one run of tests."""
