"""Reads training scripts of other libraries: `script_text` their fields, `translate` what each means here."""
