"""What authors of plug-ins test their code with; nothing else in the package imports it."""
