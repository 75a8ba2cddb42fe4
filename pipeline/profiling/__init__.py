"""How fast is a step, and what binds it?"""
