#!/bin/bash
# PreToolUse: exit code 2 blocks a write to a protected file; stderr is the reason.
file_path=$(jq -r '.tool_input.file_path // empty')
for pattern in .env package-lock.json .git/; do
  if [[ "$file_path" == *"$pattern"* ]]; then
    echo "Blocked: $file_path matches the protected pattern '$pattern'" >&2
    exit 2
  fi
done
exit 0
