// The JSON API as /openapi.json describes it: operations, their parameters and answers, and what these hold.

import { get, id, node, say } from "/static/tools.js";

const last = (ref) => ref.split("/").at(-1);

// A type in words, as a list of nodes; names of schemas are links.
function type(schema) {
  if (!schema) return [node("span", { text: "anything" })];
  if (schema.$ref) return [node("a", { href: `#${last(schema.$ref)}`, text: last(schema.$ref) })];
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return either.flatMap((one, at) => (at ? [node("span", { text: " or " }), ...type(one)] : type(one)));
  if (schema.enum) return [node("code", { text: schema.enum.map((one) => JSON.stringify(one)).join(" | ") })];
  if (schema.const !== undefined) return [node("code", { text: JSON.stringify(schema.const) })];
  if (schema.type === "array") return [node("span", { text: "list of " }), ...type(schema.items)];
  if (schema.type === "object" && schema.additionalProperties) return [node("span", { text: "object of " }), ...type(schema.additionalProperties)];
  const bounds = [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"], ["minLength", "length ≥"], ["maxLength", "length ≤"], ["minItems", "items ≥"], ["maxItems", "items ≤"]];
  const limits = bounds.filter(([name]) => schema[name] !== undefined).map(([name, sign]) => `${sign} ${schema[name].toLocaleString("en")}`);
  return [node("span", { text: [schema.type ?? "anything", ...limits].join(", ") })];
}

function row(name, schema, { required, description }) {
  const given = schema?.default === undefined ? "" : `; ${JSON.stringify(schema.default)} if not given`;
  return node("tr", {}, [
    node("th", { scope: "row" }, [node("code", { text: name }), node("span", { text: required ? "" : " ?", title: "need not be given" })]),
    node("td", {}, [...type(schema), node("span", { text: given })]),
    node("td", {}, prose(description ?? schema?.description ?? "")),
  ]);
}

// A sentence in which names stand between backticks.
const prose = (text) => text.split("`").map((part, at) => node(at % 2 ? "code" : "span", { text: part }));

const table = (rows) => node("table", { class: "fields" }, [node("tbody", {}, rows)]);

function operation(path, method, told) {
  const body = told.requestBody?.content?.["application/json"]?.schema;
  const answers = Object.entries(told.responses).map(([code, { description, content }]) => {
    const kinds = Object.entries(content ?? {}).flatMap(([kind, { schema }]) => (kind === "application/json" ? type(schema) : [node("span", { text: kind })]));
    return node("tr", {}, [node("th", { scope: "row", text: code }), node("td", {}, kinds), node("td", {}, prose(description))]);
  });
  return node("section", { class: "operation" }, [
    node("h2", {}, [node("code", { text: `${method.toUpperCase()} ${path}` })]),
    node("p", {}, prose(told.description ?? told.summary ?? "")),
    ...(told.parameters?.length ? [table(told.parameters.map((one) => row(one.name, one.schema, one)))] : []),
    ...(body ? [node("p", {}, [node("span", { text: "Body: " }), ...type(body)])] : []),
    table(answers),
  ]);
}

function schema(name, told) {
  const required = told.required ?? [];
  const rows = Object.entries(told.properties ?? {}).map(([field, of]) => row(field, of, { required: required.includes(field) }));
  return node("section", { class: "operation", id: name }, [node("h2", {}, [node("code", { text: name })]), node("p", {}, prose(told.description ?? "")), table(rows)]);
}

try {
  const told = await get("/openapi.json");
  id("about").replaceChildren(...prose(told.info.description));
  id("operations").replaceChildren(...Object.entries(told.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => operation(path, method, one))));
  id("schemas").replaceChildren(...Object.entries(told.components.schemas).map(([name, one]) => schema(name, one)));
} catch (error) {
  say(error.message, "bad");
}
