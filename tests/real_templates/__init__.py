"""Report what real chat templates write and how our dialects read it (`nox -s templates -- FOLDER`)."""
