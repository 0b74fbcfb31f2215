"""The sections of a report, each from what lies in a runs folder."""
