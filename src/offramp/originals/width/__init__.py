"""Width pruning (EBERT): gates select the heads and channels that each row needs; the encoder is unchanged."""
