"""Define the scenarios and checks that all APIs share: errors, refusals, optional fields, models, timing."""
