"""Runs the command of an MCP server and passes on its messages, one a line; one that is too long ends the server.

The SDK keeps a line of any length in memory. This program stands between: python relay.py COMMAND ARGUMENTS…
"""

import subprocess
import sys

LONGEST = 4 << 20  # most bytes of a message


def main(command: list[str]) -> int:
  """Returns the exit status of the command."""
  with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
    assert server.stdout
    while line := server.stdout.readline(LONGEST + 1):
      if len(line) > LONGEST:
        server.kill()
        print(f"{command[0]}: a message of more than {LONGEST} bytes; the server is ended.", file=sys.stderr)
        return 1
      sys.stdout.buffer.write(line)
      sys.stdout.flush()
  return server.returncode


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
