"""Scenarios and checks of what all APIs share: errors, refusals, optional fields, models and timing."""
