"""Helpers of all modules, not for users."""
