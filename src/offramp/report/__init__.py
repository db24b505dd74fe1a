"""Results in; tables, figures, files and one HTML page out."""
