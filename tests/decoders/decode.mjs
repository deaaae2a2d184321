// Reads a body a line and prints what JavaScript understands after a usual way to set defaults, `Object.assign`.
import readline from "node:readline";

const copy = (value) => Object.assign({}, value);

for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  let answer;
  try {
    const body = copy(JSON.parse(line));
    answer = {
      model: body.model,
      ceiling: body.max_completion_tokens ?? body.max_tokens ?? null,
      n: body.n ?? 1,
      stream: body.stream ?? false,
      usage: copy(body.stream_options).include_usage ?? false,
    };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
