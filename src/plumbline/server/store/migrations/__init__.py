"""Bring the tables of older versions up to date, with Alembic."""
