"""Structured output: compile schemas, regexes and tool choices to one grammar per answer."""
