"""What shall we rent?"""
