"""Apply checks to transcripts. Nothing here does I/O."""
