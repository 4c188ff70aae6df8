"""Start our server, and judge or fuzz it. This is not part of the judge, which does not import any server."""
