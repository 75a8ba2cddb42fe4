"""Is it better, and who serves?"""
