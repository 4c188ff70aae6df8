"""Define the port between answers and engines: values that cross it, the `Engine` protocol, and its connections.

What belongs here is a value, a protocol or a frame between processes. It knows neither text nor tensors.
"""
