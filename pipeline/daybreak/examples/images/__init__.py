"""Photographs of handwritten digits, as JPEG: which digit is it?"""
