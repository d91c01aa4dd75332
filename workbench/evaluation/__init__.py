"""Evaluate one kernel: is it correct, which rule does it break, and how fast is it?

Neither the process that decides nor the one that holds the reference imports the code under test,
if the Spec is in another file.
"""
