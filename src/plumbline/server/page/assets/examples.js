// What the settings offer to begin with.

export const FORMATS = {
  json_schema: JSON.stringify({ type: "object", properties: { name: { type: "string" }, year: { type: "integer" } },
    required: ["name", "year"], additionalProperties: false }, null, 2),
  regex: "(yes|no), because [a-z ]{3,40}\\.",
  grammar: 'root ::= "The answer is " [0-9]+ "."',
};

export const TOOL = JSON.stringify([{ name: "get_weather", description: "Get the weather of a city.", parameters: {
  type: "object", properties: { city: { type: "string" } }, required: ["city"] } }], null, 2);
