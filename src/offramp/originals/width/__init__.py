"""Width: which heads and channels a row needs (EBERT), beside an encoder that stays as it is."""
