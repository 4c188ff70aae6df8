"""Draw pictures with known content, ask about them, and train the eyes of the pocket model on them."""
