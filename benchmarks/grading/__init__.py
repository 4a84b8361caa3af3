"""How often the grading of mathematical answers is right."""
