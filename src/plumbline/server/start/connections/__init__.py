"""Change how uvicorn treats a connection; the list is in `start/listener.py`."""
