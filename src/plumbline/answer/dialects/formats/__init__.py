"""Read, write and constrain one tool call in each of the call formats."""
