"""Steppers: a backbone with its exits on one backend."""
