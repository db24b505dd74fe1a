"""The verbs of the package, a function each; the command line is a thin skin over them."""
