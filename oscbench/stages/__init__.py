"""The stages from images to scores, a file each; ``stage.py`` says what a stage is and runs what is missing."""
