#!/bin/bash
# PreToolUse: JSON denies a destructive command.
command=$(jq -r '.tool_input.command')
if echo "$command" | grep -q 'rm -rf'; then
  jq -n '{hookSpecificOutput: {hookEventName: "PreToolUse", permissionDecision: "deny",
          permissionDecisionReason: "Destructive command blocked by hook"}}'
fi
