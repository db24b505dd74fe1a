// Run `model.onnx`, a single graph with early exits, from Node: npm install onnxruntime-node, then
//   node one_file.mjs MODEL/onnx/model.onnx batches.json
// batches.json: [{"input_ids": [[…], …], "attention_mask": [[…], …], "token_type_ids": …, "threshold": 0.3}, …]
import { readFileSync } from "node:fs";
import { InferenceSession, Tensor } from "onnxruntime-node";

const [model, file] = process.argv.slice(2);
const session = await InferenceSession.create(model);
const predictions = [];
for (const { threshold, ...table } of JSON.parse(readFileSync(file, "utf8"))) {
  const feeds = {
    threshold: new Tensor("float32", Float32Array.of(threshold), []),
    max_layers: new Tensor("int64", BigInt64Array.of(1000n), []),
  };
  for (const name of session.inputNames.filter((name) => name in table)) {
    const rows = table[name];
    feeds[name] = new Tensor("int64", BigInt64Array.from(rows.flat().map(BigInt)), [rows.length, rows[0].length]);
  }
  const { logits, exit_layer } = await session.run(feeds);
  predictions.push({ logits: [...logits.data], exit_layer: [...exit_layer.data].map(Number) });
}
console.log(JSON.stringify({ answers: predictions }));
