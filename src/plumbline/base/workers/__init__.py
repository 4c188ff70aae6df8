"""Run functions on input of strangers in processes that may die.

A pool (`pool.py`) starts one template process (`process.py`), which imports what the function needs and forks a worker
for each place. Clients take turns (`turns.py`). This package knows nothing of what the functions do.
"""
