"""What happens to a result before it is stored: activations, and functions that users write in Python."""
