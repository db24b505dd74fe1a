"""What every exit said about every row of a data set: recorded, read, replayed."""
