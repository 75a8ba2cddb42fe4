"""What came in, and can it be trusted?"""
