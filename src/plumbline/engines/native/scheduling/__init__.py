"""Plan the steps of our engine.

scheduler    what each step computes, from one budget of tokens
pace         how many tokens of prompts a step has time for
kv_blocks    the blocks of the cache, and which prefixes they have
snapshots    the states of prefixes, of models whose layers keep one
speculation  tokens that may follow, for a step to verify
"""
