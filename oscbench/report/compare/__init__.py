"""What was measured here beside what the two papers printed."""
