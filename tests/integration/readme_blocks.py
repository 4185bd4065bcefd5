# SPDX-License-Identifier: Apache-2.0
"""Prints what README.md asks the reader to type: readme_blocks.py README program | commands

program: the C++ block. commands: the shell lines of its section, one per line, without comments:
those of the block that follows the program, and every `muster ...` in the text.
"""

import pathlib
import re
import sys


def program_section(text):
    """Returns the second-level section that holds the C++ block."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    return next(section for section in sections if "```cpp\n" in section)


def commands(section):
    after_program = section[section.index("```cpp\n") :]
    block = re.search(r"```sh\n(.*?)```", after_program, re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line) for line in block[1].splitlines()]
    prose = re.sub(r"```.*?```", "", section, flags=re.DOTALL)
    inline = [" ".join(code.split()) for code in re.findall(r"`(muster [^`]*)`", prose)]
    return [line for line in lines + inline if line.strip()]


def main():
    section = program_section(pathlib.Path(sys.argv[1]).read_text())
    if sys.argv[2] == "program":
        print(re.search(r"```cpp\n(.*?)```", section, re.DOTALL)[1], end="")
    else:
        print("\n".join(commands(section)))


main()
