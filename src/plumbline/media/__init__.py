"""Decode images, audio and videos to arrays, for the server that checks files and for engines that read them."""
