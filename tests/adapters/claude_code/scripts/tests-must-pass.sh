#!/bin/bash
# Stop: keeps the agent working until a file says that the tests pass.
input=$(cat)
echo "$input" | jq -r '.stop_hook_active' >> "$CLAUDE_PROJECT_DIR/stops.log"
if [ ! -f "$CLAUDE_PROJECT_DIR/passed" ]; then
  touch "$CLAUDE_PROJECT_DIR/passed"
  echo "The tests fail. Fix them." >&2
  exit 2
fi
