"""Sphinx's settings. The pages are gathered by build.py."""

project = "ragrl_jax"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "ragrl_jax"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3  # headings can be linked to, as on a forge
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True  # the link names the module
python_display_short_literal_types = True
highlight_language = "none"  # a block without a language is a command
smartquotes = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
toc_object_entries_show_parents = "hide"
add_module_names = False  # the section names it
