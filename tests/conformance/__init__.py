"""Wire conformance: cases with their right outcome, and runners that hold any gateway to them.

`README.md` beside this file says what the lines of the three files mean and how to run them.
"""
