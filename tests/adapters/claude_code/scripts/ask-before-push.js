#!/usr/bin/env node
// PreToolUse: asks a person before a push.
const chunks = [];
process.stdin.on("data", (chunk) => chunks.push(chunk));
process.stdin.on("end", () => {
  const { tool_input } = JSON.parse(Buffer.concat(chunks).toString());
  if (/^git push/.test(tool_input.command || "")) {
    console.log(JSON.stringify({ hookSpecificOutput: { hookEventName: "PreToolUse",
      permissionDecision: "ask", permissionDecisionReason: "This changes the remote repository." } }));
  }
});
