"""Start our own server, and judge or fuzz it. Not part of the judge, which knows no server."""
