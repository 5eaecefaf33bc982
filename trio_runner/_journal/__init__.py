"""Journals: implementations of `trio_runner.abc.Journal`, one per module."""
