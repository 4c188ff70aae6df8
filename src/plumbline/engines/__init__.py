"""Generate tokens: the engines that implement `plumbline.port.engine`, and the code that they share."""
