"""Names that clients of the reference need."""

MODEL = "org/good"
KEY = "sk-reference"
