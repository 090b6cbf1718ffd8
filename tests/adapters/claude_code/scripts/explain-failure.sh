#!/bin/bash
# PostToolUseFailure: adds advice about an error.
jq '{hookSpecificOutput: {hookEventName: "PostToolUseFailure",
     additionalContext: ("After \"" + .error + "\" look at CONTRIBUTING.md")}}'
