"""What clients of the reference have to know."""

MODEL = "org/good"
KEY = "sk-reference"
