/**
 * Ask the hooks of a Hookline server: one file without dependencies, for Node, Deno, Bun and browsers.
 *
 *     const hookline = new Hookline({ url: "http://127.0.0.1:8420", session: "chat-7" });
 *     const text = await hookline.tool("send_mail", { to: "ann@example.com" }, (args) => sendMail(args));
 *
 * Without an answer, nothing is allowed: every method throws then, and the action must not happen.
 */

// Types, made from the Python classes by `make docs`.

/** A file for the model: its content in Base64 as `data`, or a `url` that the vendor of the model fetches. `media_type` is found from the content and the name if left out. */
export interface AttachmentInput {
  data?: string;
  url?: string;
  media_type?: string;
  name?: string;
}

/** Payload of `on_run_start`: the task of the run and its attachments, which hooks may rewrite. */
export interface RunStart {
  task: string;
  attachments?: AttachmentInput[];
}

/** Payload of `before_step`: the number of the step, from 0. */
export interface StepStart {
  index: number;
}

/** A tool call in a model's reply. */
export interface ToolCall {
  id: string;
  name: string;
  arguments?: Record<string, unknown>;
}

/** One message of a transcript. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content?: string;
  tool_calls?: ToolCall[];
  call_id?: string | null;
  name?: string | null;
  is_error?: boolean;
  attachments?: AttachmentInput[];
}

/** The description of a tool for the model: name, purpose, and JSON schema of the parameters. */
export interface ToolSpec {
  name: string;
  description?: string;
  parameters?: Record<string, unknown>;
}

/** Payload of `before_llm`: the complete request to the model. */
export interface ModelRequest {
  messages?: Message[];
  tools?: ToolSpec[];
  model?: string;
  purpose?: string;
  response_format?: unknown;
  tool_choice?: string | null;
  params?: Record<string, unknown>;
}

/** Payload of `on_token`: a piece of streamed text. */
export interface TokenDelta {
  delta: string;
  text?: string;
  final?: boolean;
  purpose?: string;
}

/** The number of tokens used. */
export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  cached_tokens?: number;
}

/** Payload of `after_llm`: the model's reply. */
export interface ModelReply {
  content?: string;
  tool_calls?: ToolCall[];
  purpose?: string;
  usage?: Usage;
  cost?: number | null;
  finish_reason?: string;
  model?: string;
  provider?: string;
  duration?: number;
  response_id?: string;
}

/** Payload of `before_tool`: a tool call. */
export interface ToolCallRequest {
  id: string;
  name: string;
  arguments?: Record<string, unknown>;
}

/** Payload of `after_tool`: the result of a tool call, as JSON. */
export interface ToolCallResult {
  id: string;
  name: string;
  arguments?: Record<string, unknown>;
  result?: unknown;
  error?: string | null;
  duration?: number;
}

/** A finished step: one model reply and the tool calls it made. */
export interface Step {
  index: number;
  content?: string;
  tool_names?: string[];
  outcomes?: ("ok" | "error" | "blocked" | "answered" | "cancelled")[];
  usage?: Usage;
  finish_reason?: string;
  duration?: number;
}

/** A failure as data. */
export interface ErrorInfo {
  where: "model" | "tool" | "hook" | "output" | "framework";
  type: string;
  message: string;
  call_id?: string;
  fatal?: boolean;
  retry_after?: number | null;
}

/** Payload of `on_error`: a failure. */
export interface ErrorReport {
  errors: ErrorInfo[];
  where: "model" | "tool" | "hook" | "output" | "framework";
  fatal?: boolean;
  purpose?: string;
}

/** Payload of `before_compaction`: the messages to compact, and why. */
export interface Compaction {
  messages: Message[];
  reason?: string;
}

/** The result of a run, and the payload of `on_run_end`. */
export interface AgentResult {
  reply: string;
  errors?: ErrorInfo[];
}

/** An image, a PDF, audio or another file in a message or in a tool result. */
export interface JudgedAttachment {
  media_type: string;
  digest: string;
  size: number;
  name: string;
  url: string;
}

/** Payload of `on_run_start`: the task of the run and its attachments, which hooks may rewrite. */
export interface JudgedRunStart {
  task: string;
  attachments: JudgedAttachment[];
}

/** Payload of `before_step`: the number of the step, from 0. */
export interface JudgedStepStart {
  index: number;
}

/** A tool call in a model's reply. */
export interface JudgedToolCall {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
}

/** One message of a transcript. */
export interface JudgedMessage {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  tool_calls: JudgedToolCall[];
  call_id: string | null;
  name: string | null;
  is_error: boolean;
  attachments: JudgedAttachment[];
}

/** The description of a tool for the model: name, purpose, and JSON schema of the parameters. */
export interface JudgedToolSpec {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
}

/** Payload of `before_llm`: the complete request to the model. */
export interface JudgedModelRequest {
  messages: JudgedMessage[];
  tools: JudgedToolSpec[];
  model: string;
  purpose: string;
  response_format: unknown;
  tool_choice: string | null;
  params: Record<string, unknown>;
}

/** Payload of `on_token`: a piece of streamed text. */
export interface JudgedTokenDelta {
  delta: string;
  text: string;
  final: boolean;
  purpose: string;
}

/** The number of tokens used. */
export interface JudgedUsage {
  input_tokens: number;
  output_tokens: number;
  cached_tokens: number;
}

/** Payload of `after_llm`: the model's reply. */
export interface JudgedModelReply {
  content: string;
  tool_calls: JudgedToolCall[];
  purpose: string;
  usage: JudgedUsage;
  cost: number | null;
  finish_reason: string;
  model: string;
  provider: string;
  duration: number;
  response_id: string;
}

/** Payload of `before_tool`: a tool call. */
export interface JudgedToolCallRequest {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
}

/** Payload of `after_tool`: the result of a tool call, as JSON. */
export interface JudgedToolCallResult {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
  result: unknown;
  error: string | null;
  duration: number;
}

/** A finished step: one model reply and the tool calls it made. */
export interface JudgedStep {
  index: number;
  content: string;
  tool_names: string[];
  outcomes: ("ok" | "error" | "blocked" | "answered" | "cancelled")[];
  usage: JudgedUsage;
  finish_reason: string;
  duration: number;
}

/** A failure as data. */
export interface JudgedErrorInfo {
  where: "model" | "tool" | "hook" | "output" | "framework";
  type: string;
  message: string;
  call_id: string;
  fatal: boolean;
  retry_after: number | null;
}

/** Payload of `on_error`: a failure. */
export interface JudgedErrorReport {
  errors: JudgedErrorInfo[];
  where: "model" | "tool" | "hook" | "output" | "framework";
  fatal: boolean;
  purpose: string;
}

/** Payload of `before_compaction`: the messages to compact, and why. */
export interface JudgedCompaction {
  messages: JudgedMessage[];
  reason: string;
}

/** The result of a run, and the payload of `on_run_end`. */
export interface JudgedAgentResult {
  reply: string;
}

/** Go on with `payload`, which hooks have `changed` or not. It has the fields of the payload of the question. `system_prompt` is what hooks add to the system prompt of a run. */
export interface Allow<P extends Point> {
  action: "allow";
  run: string;
  payload: Results[P];
  changed: boolean;
  system_prompt: string;
}

/** Do not do it. `reason` is for the model, `by` the hook or the person that decided. */
export interface Block {
  action: "block";
  run: string;
  reason: string;
  by: string;
}

/** Do not do it: use `value` in place of the result of the tool, or of the reply of the model. */
export interface Answered {
  action: "answer";
  run: string;
  value: unknown;
  by: string;
  reason: string;
}

/** A call that waits for people: `POST /approvals/{id}` with this digest decides about it. */
export interface PendingApproval {
  id: string;
  digest: string;
  expires: number;
  questions: string[];
}

/** Do not do it yet: people must approve it. `GET /decide/{decision}` waits for them, and returns the answer. An approver may have changed the call. */
export interface Ask {
  action: "ask";
  run: string;
  decision: string;
  approval: PendingApproval;
}

/** Do not use the reply or the result: call the model or the tool again, and give the model `note`. */
export interface Retry {
  action: "retry";
  run: string;
  note: string;
  by: string;
}

/** Do not stop: continue the run with `note` as a message of the user. */
export interface KeepGoing {
  action: "keep_going";
  run: string;
  note: string;
  by: string;
}

/** Do not do it, and end the run now, with this reply. The server has ended its run. */
export interface End {
  action: "end";
  run: string;
  reply: string;
  by: string;
}

/** Do not do it, and stop the run: a hook, a limit or the stop switch wants that. `payload` is there if the action has already happened: what the hooks made of its result. */
export interface Stop<P extends Point> {
  action: "stop";
  run: string;
  reason: string;
  kind: string;
  by: string;
  payload: Results[P] | null;
}

/** The payload of a question, by point. */
export interface Payloads {
  on_run_start: RunStart;
  before_step: StepStart;
  before_llm: ModelRequest;
  on_token: TokenDelta;
  after_llm: ModelReply;
  before_tool: ToolCallRequest;
  after_tool: ToolCallResult;
  after_step: Step;
  on_error: ErrorReport;
  before_compaction: Compaction;
  on_run_end: AgentResult;
}

/** The payload of an answer, by point: what the hooks made of it. */
export interface Results {
  on_run_start: JudgedRunStart;
  before_step: JudgedStepStart;
  before_llm: JudgedModelRequest;
  on_token: JudgedTokenDelta;
  after_llm: JudgedModelReply;
  before_tool: JudgedToolCallRequest;
  after_tool: JudgedToolCallResult;
  after_step: JudgedStep;
  on_error: JudgedErrorReport;
  before_compaction: JudgedCompaction;
  on_run_end: JudgedAgentResult;
}

/** The points that a program can ask about. */
export type Point = keyof Payloads;

/** The answer to a question about a point. Only `allow` lets the program go on. */
export type Answer<P extends Point = Point> = Allow<P> | Block | Answered | Ask | Retry | KeepGoing | End | Stop<P>;

// End of the types.

/** The server gave no answer that can be used: the action must not happen. */
export class NoAnswerError extends Error {
  /** The HTTP status; 0 without a response. */
  readonly status: number;
  /** The error code of the server, such as `busy` or `halted`. */
  readonly code: string;

  constructor(message: string, status = 0, code = "no_answer", cause?: unknown) {
    super(message, { cause });
    this.name = "NoAnswerError";
    this.status = status;
    this.code = code;
  }
}

/** The hooks do not let the action happen, or a person denied it. `answer` says what they want instead. */
export class RefusedError extends Error {
  readonly answer: Answer;

  constructor(answer: Answer) {
    super(reasonOf(answer));
    this.name = "RefusedError";
    this.answer = answer;
  }
}

export interface Options {
  /** The address of the server, such as `http://127.0.0.1:8420`. */
  url: string;
  /** Your name for the conversation. Its questions form one run after another, with one state of the hooks. */
  session: string;
  /** An API key with the right `run`; not needed on the same machine while the server has no keys. */
  key?: string;
  /** The agent whose hooks decide; the first one of the server if left out. */
  agent?: string;
  /** Seconds until an answer must be there. People have `approvalSeconds` to decide. */
  timeout?: number;
  /** Seconds to wait until people have approved a call; 0 to get the answer `ask` instead. */
  approvalSeconds?: number;
  /** Used in place of the global `fetch`. */
  fetch?: typeof fetch;
}

export interface Call {
  /** Gives the question up. The server is not told, so a person may still decide about it. */
  signal?: AbortSignal;
}

const POLL_SECONDS = 30;
const ACTIONS: readonly string[] = ["allow", "block", "answer", "ask", "retry", "keep_going", "end", "stop"];

export class Hookline {
  readonly #options: Required<Omit<Options, "key" | "agent">> & Options;
  #run = "";

  constructor(options: Options) {
    this.#options = { timeout: 30, approvalSeconds: 600, fetch: globalThis.fetch.bind(globalThis), ...options };
  }

  /**
   * Ask about one moment, and return the answer. Do what it says: only `allow` lets you go on, with its `payload`.
   *
   * @throws {NoAnswerError} There is no answer: treat that as `block`.
   */
  async decide<P extends Point>(point: P, payload: Payloads[P], call: Call = {}): Promise<Answer<P>> {
    const { session, agent, approvalSeconds } = this.#options;
    if (point === "on_run_start") this.#run = "";
    const until = Date.now() + approvalSeconds * 1000;
    const wait = point === "before_tool" ? { wait: Math.min(POLL_SECONDS, approvalSeconds) } : {};
    const run = this.#run ? { run: this.#run } : {}; // if the server has lost the run, it must not begin another
    const body = JSON.stringify({ point, session, payload, ...(agent ? { agent } : {}), ...run, ...wait });
    const key = crypto.randomUUID(); // the question may be sent twice: the server judges it once
    let answer = await this.#ask<P>("POST", "/decide", call, wait.wait ?? 0, body, key);
    while (answer.action === "ask" && Date.now() < until) {
      const left = Math.min(POLL_SECONDS, Math.max((until - Date.now()) / 1000, 0.1));
      answer = await this.#ask<P>("GET", `/decide/${encodeURIComponent(answer.decision)}?wait=${left}`, call, left);
    }
    this.#run = point === "on_run_end" && answer.action !== "keep_going" ? "" : answer.run;
    return answer;
  }

  /** The id of the open run, as `GET /runs/ID` and the console show it; empty if none is open. */
  get run(): string {
    return this.#run;
  }

  /**
   * Call a tool under the hooks: ask, call it with the arguments that they allow, and return the result as they change it.
   *
   * @throws {RefusedError} The hooks or a person do not allow the call: give its message to the model as the result.
   * @throws {NoAnswerError} There is no answer: the tool was not called, or its result must not be used.
   */
  async tool<A extends Record<string, unknown>>(
    name: string,
    args: A,
    run: (args: A) => unknown | Promise<unknown>,
    call: Call & { id?: string } = {},
  ): Promise<unknown> {
    const id = call.id ?? `call_${crypto.randomUUID()}`;
    const judged = await this.decide("before_tool", { id, name, arguments: args }, call);
    if (judged.action === "answer") return judged.value;
    if (judged.action !== "allow") throw new RefusedError(judged);
    if (judged.payload.name !== name) {
      throw new NoAnswerError(`a hook changed the tool ${name} to ${judged.payload.name}`, 200, "other_tool");
    }
    const began = Date.now();
    const ended = { id, name, arguments: judged.payload.arguments };
    let failure: unknown;
    let result: Partial<Payloads["after_tool"]>;
    try {
      result = { result: plain(await run(judged.payload.arguments as A)) };
    } catch (error) {
      failure = error;
      result = { error: error instanceof Error ? error.message : String(error) };
    }
    const duration = (Date.now() - began) / 1000;
    const settled = await this.decide("after_tool", { ...ended, ...result, duration }, call);
    if (settled.action !== "allow") throw new RefusedError(settled);
    if (settled.payload.error !== null) {
      throw failure !== undefined && settled.payload.error === result.error
        ? failure
        : new Error(settled.payload.error ?? "");
    }
    return settled.payload.result;
  }

  async #ask<P extends Point>(
    method: string,
    path: string,
    call: Call,
    wait: number,
    body?: string,
    key?: string,
  ): Promise<Answer<P>> {
    const deadline = Date.now() + (this.#options.timeout + wait) * 1000;
    for (let attempt = 1; ; attempt++) {
      call.signal?.throwIfAborted();
      const ended = AbortSignal.timeout(Math.max(deadline - Date.now(), 1));
      try {
        return await this.#send<P>(method, path, call.signal ? AbortSignal.any([call.signal, ended]) : ended, body, key);
      } catch (error) {
        call.signal?.throwIfAborted();
        if (error instanceof NoAnswerError) throw error;
        if (ended.aborted) throw new NoAnswerError("Hookline did not answer in time", 0, "timeout", error);
        if (attempt === 2) throw new NoAnswerError("Hookline cannot be reached", 0, "unreachable", error);
      }
    }
  }

  async #send<P extends Point>(
    method: string,
    path: string,
    signal: AbortSignal,
    body?: string,
    key?: string,
  ): Promise<Answer<P>> {
    const headers: Record<string, string> = { accept: "application/json" };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (key !== undefined) headers["idempotency-key"] = key;
    if (this.#options.key) headers["authorization"] = `Bearer ${this.#options.key}`;
    const url = this.#options.url.replace(/\/+$/, "") + path;
    const response = await this.#options.fetch(url, { method, headers, body, signal, redirect: "error" });
    const text = await response.text();
    let answer: any;
    try {
      answer = JSON.parse(text);
    } catch {
      answer = null;
    }
    if (!response.ok) {
      const error = answer?.error;
      throw new NoAnswerError(error?.message ?? `the server answered ${response.status}`, response.status, error?.code);
    }
    const known = ACTIONS.includes(answer?.action) && (answer.action !== "allow" || isObject(answer.payload));
    if (!known) throw new NoAnswerError("the server sent no answer that this client knows", response.status);
    return answer as Answer<P>;
  }
}

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null;
}

/** A result as JSON, in which `undefined` is `null`. */
function plain(value: unknown): unknown {
  return value === undefined ? null : value;
}

function reasonOf(answer: Answer): string {
  switch (answer.action) {
    case "block":
    case "stop":
      return answer.reason;
    case "ask":
      return "Nobody has approved this call yet.";
    case "retry":
    case "keep_going":
      return answer.note;
    case "end":
      return answer.reply;
    default:
      return answer.action;
  }
}
