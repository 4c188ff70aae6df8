"""Generate tokens: one port, the engines that implement it, and the code that they share."""
