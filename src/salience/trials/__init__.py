"""Tests of methods that need more than one model: planted shortcuts, ROAR, simulatability and agreement."""
