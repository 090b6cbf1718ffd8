// The Vercel AI SDK against `hookline serve`.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const agents = createOpenAICompatible({ name: "hookline", baseURL: `${process.env.KIT_URL}/v1`, apiKey: "none" });
const model = agents("hookline");
const said = "You said 'hi' with 0 files.";

const must = (condition, seen) => {
  if (!condition) throw new Error(JSON.stringify(seen));
};

const cases = {
  "completes a chat": async () => {
    const { text, finishReason } = await generateText({ model, prompt: "hi", maxRetries: 0 });
    must(text === said && finishReason === "stop", [text, finishReason]);
  },
  "streams": async () => {
    let text = "";
    for await (const piece of streamText({ model, prompt: "hi", maxRetries: 0 }).textStream) text += piece;
    must(text === said, text);
  },
  "reads the message of an error": async () => {
    try {
      await generateText({ model: agents("nobody"), prompt: "hi", maxRetries: 0 });
    } catch (error) {
      must(error.statusCode === 404 && error.message.includes("there is no agent 'nobody'"), String(error));
      return;
    }
    must(false, "no error");
  },
};

const found = {};
for (const [name, run] of Object.entries(cases)) {
  found[name] = await run().then(() => "yes", (error) => `no: ${String(error).slice(0, 200)}`);
}
console.log(JSON.stringify(found));
