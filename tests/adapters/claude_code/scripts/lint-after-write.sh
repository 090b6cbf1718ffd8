#!/bin/bash
# PostToolUse: exit code 2 gives the model the complaint of a linter.
file_path=$(jq -r '.tool_input.file_path')
if grep -qn ' $' "$file_path"; then
  echo "$(basename "$file_path") has trailing spaces" >&2
  exit 2
fi
