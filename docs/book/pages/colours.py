"""The colours of code: few, and readable (contrast 4.5 and more) in both schemes."""

from pygments.style import Style
from pygments.token import Comment, Generic, Keyword, Name, Number, String, Text


class Light(Style):
    background_color = "#f7f8f9"
    styles = {Text: "#24292f", Comment: "italic #525c66", Comment.Preproc: "noitalic #7c3f9b",
              Comment.PreprocFile: "noitalic #2c6350", Keyword: "#8a2f6b", Keyword.Type: "#8a2f6b", String: "#2c6350", Number: "#0b5f94",
              Name.Function: "#0b5f94", Name.Class: "#0b5f94", Name.Builtin: "#0b5f94", Generic.Prompt: "#525c66"}


class Dark(Style):
    background_color = "#1c2026"
    styles = {Text: "#d7dde4", Comment: "italic #aab4bf", Comment.Preproc: "noitalic #cfa3e6",
              Comment.PreprocFile: "noitalic #8fd3b4", Keyword: "#eb9fcb", Keyword.Type: "#eb9fcb", String: "#8fd3b4", Number: "#82c4f0",
              Name.Function: "#82c4f0", Name.Class: "#82c4f0", Name.Builtin: "#82c4f0", Generic.Prompt: "#aab4bf"}
