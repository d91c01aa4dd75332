"""Drawings and tables that pages share."""
