// The OpenAI SDK for JavaScript against `hookline serve`.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.KIT_URL}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "hi" }];
const said = "You said 'hi' with 0 files.";
const png = "data:image/png;base64,iVBORw0KGgo=";

const must = (condition, seen) => {
  if (!condition) throw new Error(JSON.stringify(seen));
};

const cases = {
  "completes a chat": async () => {
    const answer = await client.chat.completions.create({ model, messages });
    must(answer.choices[0].message.content === said && answer._request_id, answer);
  },
  "streams, with usage": async () => {
    let text = "", usage = null;
    const stream_options = { include_usage: true };
    for await (const chunk of await client.chat.completions.create({ model, messages, stream: true, stream_options })) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    must(text === said && usage, [text, usage]);
  },
  "sends a message that is only an image": async () => {
    const content = [{ type: "image_url", image_url: { url: png } }];
    const answer = await client.chat.completions.create({ model, messages: [{ role: "user", content }] });
    must(answer.choices[0].message.content.includes("with 1 files"), answer);
  },
  "raises the class of each error, with its type, code and request id": async () => {
    try {
      await client.chat.completions.create({ model: "nobody", messages });
    } catch (error) {
      const seen = [error.code, error.type, error.param, Boolean(error.requestID)];
      must(error instanceof OpenAI.NotFoundError, String(error));
      must(seen.join() === "model_not_found,invalid_request_error,model,true", seen);
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
