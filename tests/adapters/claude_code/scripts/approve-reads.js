#!/usr/bin/env node
// PermissionRequest: approves harmless commands, denies others.
const input = JSON.parse(require("fs").readFileSync(0, "utf8"));
const harmless = /^(ls|cat|git status)\b/.test(input.tool_input.command || "");
const decision = harmless ? { behavior: "allow" } : { behavior: "deny", message: "Ask the team first." };
console.log(JSON.stringify({ hookSpecificOutput: { hookEventName: "PermissionRequest", decision } }));
