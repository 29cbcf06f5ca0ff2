"""The commands of tools/step."""
