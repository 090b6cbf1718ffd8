// Hookline in opencode: asks hookline agent-hook before and after each tool call. Anything but a clean answer denies.
const COMMAND = __COMMAND__
const TIMEOUT = __MILLISECONDS__

export const Hookline = async ({ directory }) => {
  const ask = async (event, fields) => {
    const child = Bun.spawn(COMMAND, {
      cwd: directory,
      stdin: new Blob([JSON.stringify({ event, cwd: directory, ...fields })]),
      stdout: "pipe",
      stderr: "pipe",
      timeout: TIMEOUT,
    })
    const [text, problem, code] = await Promise.all([
      new Response(child.stdout).text(),
      new Response(child.stderr).text(),
      child.exited,
    ])
    if (code !== 0) throw new Error(problem.trim() || `Hookline: the hooks ended with exit code ${code}.`)
    const answer = JSON.parse(text)
    if (answer === null || typeof answer !== "object") throw new Error("Hookline: the answer of the hooks is not an object.")
    if ("deny" in answer) throw new Error(`Hookline: ${answer.deny}`)
    return answer
  }
  return {
    "chat.message": async (input, output) => {
      const prompt = output.parts.filter((part) => part.type === "text" && !part.synthetic).map((part) => part.text).join("\n")
      await ask("chat.message", { session: input.sessionID, prompt })
    },
    "tool.execute.before": async (input, output) => {
      const answer = await ask("tool.execute.before", {
        session: input.sessionID,
        call: input.callID,
        tool: input.tool,
        args: output.args,
      })
      if (answer.args) output.args = answer.args
    },
    "tool.execute.after": async (input, output) => {
      const given = output.output
      output.output = "Hookline: the result is withheld, because the hooks did not answer."
      const answer = await ask("tool.execute.after", {
        session: input.sessionID,
        call: input.callID,
        tool: input.tool,
        args: input.args ?? {},
        output: typeof given === "string" ? given : JSON.stringify(given ?? null),
      })
      output.output = "output" in answer ? answer.output : given
      if ("output" in answer) output.metadata = {}
    },
  }
}
