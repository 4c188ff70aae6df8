"""Check many values of one field, or of several fields together, where other scenarios look at one value."""
