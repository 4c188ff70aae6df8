"""Read images of any shape with Pixtral's tower, for Pixtral, Mistral Small 3.1 and 3.2, and Ministral 3."""
