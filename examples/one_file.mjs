// Predict texts with `model.onnx`, a single graph with early exits, from Node:
//   npm install onnxruntime-node @huggingface/tokenizers
//   offramp export MODEL --one-file
//   node one_file.mjs MODEL texts.txt
// MODEL is the model folder. Prints a JSON line per text. Takes tokenizers that end with one special token, as BERT's.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import { InferenceSession, Tensor } from "onnxruntime-node";

const BATCH = 32;
const [folder, file] = process.argv.slice(2);
const json = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const session = await InferenceSession.create(join(folder, "onnx", "model.onnx"));
const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));
// onnxruntime-node does not read a model's metadata, so `offramp export --one-file` writes them to this file too
const settings = json("onnx/model.json");

function encode(text) {
  const { ids, token_type_ids } = tokenizer.encode(text, { return_token_type_ids: true });
  const kept = (values) => (values.length <= settings.max_length ? values : [...values.slice(0, settings.max_length - 1), values.at(-1)]);
  return { input_ids: kept(ids), token_type_ids: kept(token_type_ids ?? ids.map(() => 0)) };
}

function padded(rows, pad, length) {
  const values = rows.flatMap((row) => [...row, ...Array(length - row.length).fill(pad)]);
  return new Tensor("int64", BigInt64Array.from(values, BigInt), [rows.length, length]);
}

const texts = readFileSync(file, "utf8").split("\n").map((line) => line.replace(/\r$/, ""));
if (texts.at(-1) === "") texts.pop();
for (let start = 0; start < texts.length; start += BATCH) {
  const rows = texts.slice(start, start + BATCH).map(encode);
  const length = Math.max(...rows.map((row) => row.input_ids.length));
  const feeds = {
    input_ids: padded(rows.map((row) => row.input_ids), settings.pad_token_id, length),
    attention_mask: padded(rows.map((row) => row.input_ids.map(() => 1)), 0, length),
    token_type_ids: padded(rows.map((row) => row.token_type_ids), 0, length),
    threshold: new Tensor("float32", Float32Array.of(settings.threshold), []),
    max_layers: new Tensor("int64", BigInt64Array.of(1000n), []), // more than the model has: no limit
  };
  const { logits, exit_layer } = await session.run(Object.fromEntries(session.inputNames.map((name) => [name, feeds[name]])));
  const classes = settings.labels.length;
  exit_layer.data.forEach((layer, row) => {
    const values = [...logits.data.slice(row * classes, (row + 1) * classes)];
    const best = values.indexOf(Math.max(...values));
    const score = 1 / values.reduce((sum, value) => sum + Math.exp(value - values[best]), 0);
    console.log(JSON.stringify({ label: settings.labels[best], score: Number(score.toFixed(6)), exit_layer: Number(layer) }));
  });
}
