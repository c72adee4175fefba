"""Trained models: loaded, asked, and handed on."""
