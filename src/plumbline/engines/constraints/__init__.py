"""Constrain which tokens an answer may have: grammars, bans and thinking budgets."""
