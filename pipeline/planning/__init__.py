"""How fast is it, and what shall we rent?"""
