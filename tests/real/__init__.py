"""Try published files: vocabularies of llama.cpp's tests, and three models (`nox -s real`)."""
