"""What the papers behind the protocols have printed, and what they claim."""
