"""Present results as tables, figures, files and an HTML report."""
