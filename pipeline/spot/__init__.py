"""Spot machines under a deadline: how long do they live, and when to buy?"""
