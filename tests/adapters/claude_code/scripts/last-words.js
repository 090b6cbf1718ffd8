#!/usr/bin/env node
// SubagentStop: reads the transcript, and copies what the subagent said last.
const fs = require("fs");
const input = JSON.parse(fs.readFileSync(0, "utf8"));
const lines = fs.readFileSync(input.agent_transcript_path, "utf8").trim().split("\n").map(JSON.parse);
const said = lines.filter((line) => line.type === "assistant").map((line) => line.message.content[0].text);
fs.writeFileSync(process.env.CLAUDE_PROJECT_DIR + "/last-words", `${input.agent_type}: ${said.pop()}`);
