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
      const args = output.args
      const answer = await ask("tool.execute.before", {
        session: input.sessionID,
        call: input.callID,
        tool: input.tool,
        args,
      })
      if (!answer.args) return
      for (const name of Object.keys(args)) delete args[name] // opencode uses this object, and no other
      Object.assign(args, answer.args)
    },
    "tool.execute.after": async (input, output) => {
      if (!output) return // the call failed
      const { output: text, content, ...others } = output // tools of MCP servers have content
      const given = typeof text === "string" ? text : (content ?? []).map((part) => part.text ?? JSON.stringify(part)).join("\n")
      const replace = (instead) => {
        for (const name of Object.keys(output)) delete output[name]
        Object.assign(output, { title: others.title ?? "", metadata: {}, output: instead })
        output.content = [{ type: "text", text: instead }]
      }
      replace("Hookline: the result is withheld, because the hooks did not answer.")
      const answer = await ask("tool.execute.after", {
        session: input.sessionID,
        call: input.callID,
        tool: input.tool,
        args: input.args ?? {},
        output: given,
      })
      if ("output" in answer) return replace(answer.output)
      for (const name of Object.keys(output)) delete output[name]
      Object.assign(output, others, text === undefined ? {} : { output: text }, content === undefined ? {} : { content })
    },
    event: async ({ event }) => {
      if (event.type === "session.idle") await ask("session.idle", { session: event.properties.sessionID })
    },
  }
}
