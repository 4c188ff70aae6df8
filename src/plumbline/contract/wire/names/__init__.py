"""Names of fields and paths: other spellings, those of another API, and unknown ones. Not their values."""
