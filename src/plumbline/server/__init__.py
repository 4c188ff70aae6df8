"""The HTTP edge: the Litestar app, the handlers of the contract's operations, metrics, start and shutdown."""
