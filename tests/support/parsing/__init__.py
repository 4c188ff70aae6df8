"""Draw, feed and fold answers, for the laws of dialects."""
