// The TypeScript client against `hookline serve`: what it returns, and when it throws.
import { Hookline, NoAnswerError, RefusedError } from "./client.ts";
import type { Answer } from "./client.ts";

const url = process.env.KIT_URL!;

function client(session: string, more: object = {}): Hookline {
  return new Hookline({ url, session, approvalSeconds: 20, ...more });
}

function must(condition: unknown, seen: unknown): void {
  if (!condition) throw new Error(JSON.stringify(seen) ?? String(seen));
}

async function thrown(work: () => Promise<unknown>): Promise<any> {
  try {
    const value = await work();
    throw new Error(`nothing was thrown: ${JSON.stringify(value)}`);
  } catch (error) {
    return error;
  }
}

function mail(to: string) {
  return { id: "call_1", name: "send_mail", arguments: { to } };
}

/** Wait until a call of this amount asks for approval, and decide about it. */
async function decide(amount: number, decision: object): Promise<void> {
  for (let attempt = 0; attempt < 400; attempt++) {
    const page = await (await fetch(`${url}/approvals`)).json();
    const call = page.approvals.find((each: any) => each.arguments.amount === amount);
    if (call) {
      const body = JSON.stringify({ digest: call.digest, ...decision });
      const headers = { "content-type": "application/json" };
      const answer = await fetch(`${url}/approvals/${call.id}`, { method: "POST", headers, body });
      must(answer.ok, answer.status);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error("nobody was asked");
}

const cases: Record<string, () => Promise<void>> = {
  async "allows a call"() {
    const answer = await client("allow").decide("before_tool", mail("ann@example.com"));
    must(answer.action === "allow" && answer.payload.arguments.to === "ann@example.com" && !answer.changed, answer);
  },
  async "blocks a call, with the reason"() {
    const answer = await client("block").decide("before_tool", mail("rival@example.org"));
    must(answer.action === "block" && answer.reason === "Mail goes to colleagues only.", answer);
  },
  async "calls a tool with the arguments and the result that the hooks want"() {
    const result = await client("tool").tool("convert", { feet: 3 }, (args: any) => `SECRET-1 in ${args.unit}`);
    must(result === "[secret] in m", result);
  },
  async "does not call a tool that is blocked"() {
    let called = false;
    const error = await thrown(() => client("tool").tool("send_mail", { to: "x" }, () => (called = true)));
    must(error instanceof RefusedError && error.message === "Mail goes to colleagues only." && !called, error);
  },
  async "uses an answer in place of a tool"() {
    const result: any = await client("tool").tool("today", {}, () => "never");
    must(result.day === 1, result);
  },
  async "throws the error of a tool"() {
    const error = await thrown(() =>
      client("tool").tool("read", {}, () => {
        throw new TypeError("no such file");
      }),
    );
    must(error instanceof TypeError && error.message === "no such file", error);
  },
  async "throws the error of a tool as hooks have changed it"() {
    const error = await thrown(() =>
      client("tool").tool("read", {}, () => {
        throw new TypeError("SECRET-1 is wrong");
      }),
    );
    must(!(error instanceof TypeError) && error.message === "[secret] is wrong", error);
  },
  async "waits until a person has approved"() {
    const [result] = await Promise.all([
      client("approve").tool("pay", { amount: 11 }, () => "paid"),
      decide(11, { decision: "approve" }),
    ]);
    must(result === "paid", result);
  },
  async "calls a tool as a person has edited the call"() {
    const [result] = await Promise.all([
      client("edit").tool("pay", { amount: 12 }, (args) => args.amount),
      decide(12, { decision: "edit", arguments: { amount: 1 } }),
    ]);
    must(result === 1, result);
  },
  async "refuses a call that a person has denied"() {
    const [error] = await Promise.all([
      thrown(() => client("deny").tool("pay", { amount: 13 }, () => "paid")),
      decide(13, { decision: "deny", message: "Too much." }),
    ]);
    must(error instanceof RefusedError && error.message === "Too much.", error);
  },
  async "refuses a call that nobody has approved in time"() {
    const answer = await client("late", { approvalSeconds: 0.2 }).decide("before_tool", {
      id: "call_1",
      name: "pay",
      arguments: { amount: 14 },
    });
    must(answer.action === "ask" && answer.approval.id !== "", answer);
    const error = await thrown(() => client("late", { approvalSeconds: 0.2 }).tool("pay", { amount: 15 }, () => "paid"));
    must(error instanceof RefusedError && error.answer.action === "ask", error);
  },
  async "refuses a call if a hook fails"() {
    const error = await thrown(() => client("fails").tool("fails", {}, () => "done"));
    must(error instanceof RefusedError && error.message === "Hook 'fails' failed.", error);
  },
  async "takes a run from its task to its reply"() {
    const hookline = client("run");
    const begun = await hookline.decide("on_run_start", { task: "x".repeat(60) });
    must(begun.action === "allow" && begun.payload.task.length === 40 && begun.system_prompt === "Be brief.", begun);
    const request = await hookline.decide("before_llm", { messages: [{ role: "user", content: "SECRET-1?" }] });
    must(request.action === "allow" && request.payload.messages[0].content === "[secret]?", request);
    const rude = await hookline.decide("after_llm", { content: "You idiot." });
    must(rude.action === "retry" && rude.note === "Be polite.", rude);
    await hookline.decide("before_llm", { messages: [{ role: "user", content: "SECRET-1?" }] });
    const reply = await hookline.decide("after_llm", { content: "It is SECRET-1.", usage: { input_tokens: 4 } });
    must(reply.action === "allow" && reply.payload.content === "It is [secret].", reply);
    const early = await hookline.decide("on_run_end", { reply: "Not yet." });
    must(early.action === "keep_going" && early.note === "You have not said goodbye.", early);
    const ended = await hookline.decide("on_run_end", { reply: "Goodbye." });
    must(ended.action === "allow" && ended.payload.reply === "Goodbye. -- a machine", ended);
    const runs = await (await fetch(`${url}/runs?session=run`)).json();
    const told = runs.runs.map((each: any) => [each.status, each.reply, each.input_tokens, each.steps]);
    must(JSON.stringify(told) === JSON.stringify([["completed", "Goodbye. -- a machine", 4, 1]]), told);
  },
  async "ends and stops a run when a hook wants that"() {
    const hookline = client("over");
    const paused = await hookline.decide("before_tool", { id: "call_1", name: "pause" });
    must(paused.action === "stop" && paused.reason === "A pause is due.", paused);
    const ended = await client("ended").decide("before_tool", { id: "call_1", name: "finish" });
    must(ended.action === "end" && ended.reply === "That is enough. -- a machine", ended);
    const later = await client("ended").decide("before_tool", mail("ann@example.com"));
    must(later.action === "end", later);
  },
  async "wants another attempt of a tool"() {
    const error = await thrown(() => client("flaky").tool("flaky", {}, () => "nothing"));
    must(error instanceof RefusedError && error.answer.action === "retry" && error.message === "Try the other server.", error);
  },
  async "throws if there is no server"() {
    const error = await thrown(() => client("gone", { url: "http://127.0.0.1:9" }).decide("before_tool", mail("x")));
    must(error instanceof NoAnswerError && error.code === "unreachable", error);
  },
  async "throws if the answer comes too late"() {
    let called = false;
    const error = await thrown(() => client("slow", { timeout: 0.5, approvalSeconds: 0 }).tool("hangs", {}, () => (called = true)));
    must(error instanceof NoAnswerError && error.code === "timeout" && !called, error);
  },
  async "throws if the caller gives up"() {
    const stop = new AbortController();
    setTimeout(() => stop.abort(new Error("enough")), 50);
    const error = await thrown(() => client("abort").tool("hangs", {}, () => "done", { signal: stop.signal }));
    must(error.message === "enough", String(error));
  },
  async "throws if the server does not accept the question"() {
    const wrong: any = { id: "call_1", name: "send_mail", argumets: {} };
    const error = await thrown(() => client("wrong").decide("before_tool", wrong));
    must(error instanceof NoAnswerError && error.status === 422 && error.message.includes("argumets"), error);
  },
  async "throws if the answer is not one that it knows"() {
    for (const body of ["{}", "not JSON", '{"action": "permit", "payload": {}}', '{"action": "allow"}', "null"]) {
      const fake = async () => new Response(body, { status: 200 });
      const error = await thrown(() => client("odd", { fetch: fake }).decide("before_tool", mail("x")));
      must(error instanceof NoAnswerError, [body, String(error)]);
    }
    const page = async () => new Response("<html>", { status: 502 });
    const error = await thrown(() => client("odd", { fetch: page }).decide("before_tool", mail("x")));
    must(error instanceof NoAnswerError && error.status === 502, error);
  },
  async "sends a question again if the connection breaks, and it counts once"() {
    const seen: string[] = [];
    let calls = 0;
    const flaky = async (input: any, init: any) => {
      seen.push(init.headers["idempotency-key"]);
      const response = await fetch(input, init);
      await response.clone().text();
      if (++calls === 1) throw new TypeError("fetch failed");
      return response;
    };
    const answer = await client("again", { fetch: flaky }).decide("before_tool", mail("rival@example.org"));
    must(answer.action === "block" && seen.length === 2 && seen[0] === seen[1], [answer, seen]);
    const runs = await (await fetch(`${url}/runs?session=again`)).json();
    must(runs.runs[0].tool_calls === 1, runs);
  },
  async "does not go on in another run if the state of its own is lost"() {
    const hookline = client("lost");
    must((await hookline.decide("before_tool", mail("ann@example.com"))).action === "allow", "");
    must((await client("lost").decide("on_run_end", { reply: "over" })).action === "allow", "");
    const error = await thrown(() => hookline.decide("before_tool", mail("ann@example.com")));
    must(error instanceof NoAnswerError && error.status === 409, error);
    must((await hookline.decide("on_run_start", { task: "again" })).action === "allow", "");
    must((await hookline.decide("before_tool", mail("ann@example.com"))).action === "allow", "");
  },
  async "knows the types of answers"() {
    const answer: Answer<"before_tool"> = await client("types").decide("before_tool", mail("ann@example.com"));
    // @ts-expect-error - a reply of a model is no answer to a question about a tool
    must(answer.action !== "allow" || answer.payload.content === undefined, answer);
    // @ts-expect-error - the name is missing
    await thrown(() => client("types").decide("before_tool", { id: "call_1" }));
  },
};

const found: Record<string, string> = {};
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    found[name] = "yes";
  } catch (error) {
    found[name] = `no: ${error instanceof Error ? error.message.slice(0, 300) : error}`;
  }
}
console.log(JSON.stringify(found));
process.exit(0); // questions that were given up still hold connections
