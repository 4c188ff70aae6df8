"""Three keys on one server, and the rules by which they try to learn of each other."""
