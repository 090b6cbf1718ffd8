#!/bin/bash
# UserPromptSubmit: blocks prompts with a password; plain text on stdout is context for others.
prompt=$(jq -r '.prompt')
if [[ "$prompt" == *password* ]]; then
  jq -n '{decision: "block", reason: "Remove the password from your prompt."}'
else
  echo "The release is on Friday."
fi
