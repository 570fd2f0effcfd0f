"""Reads training scripts of other libraries: `script_text` their fields, `translate` what each means here.

The tables beside this file hold every field that is known. They are data: an entry says which of our settings a field
becomes, or why it becomes none.
"""
