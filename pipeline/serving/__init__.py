"""Who answers users, with which version, and what do they do with the answer?"""
