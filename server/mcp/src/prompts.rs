//! Prompts: tasks that users start by name.

use serde_json::{Map, Value, json};

use crate::message::RpcError;

/// A prompt: a text template and its arguments.
struct Prompt {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    /// Name and description of each argument; true if it is required.
    arguments: &'static [(&'static str, &'static str, bool)],
    /// `{NAME}` is replaced by that argument.
    text: &'static str,
}

/// Maximum length of an argument in bytes.
const MAX_ARGUMENT_BYTES: usize = 1024;

static PROMPTS: [Prompt; 3] = [
    Prompt {
        name: "triage",
        title: "Triage a problem",
        description: "Find what is unhealthy, and its likely cause.",
        arguments: &[("scope", "Query that limits the search, such as ns:shop or cluster:member1.", false)],
        text: "Find out what is wrong in this part of the fleet: {scope} (the whole fleet if empty). Use `search` with \
`is:unhealthy` and the scope first, grouped by cluster or status if there are many. For the worst objects use `get` for \
conditions and events, `logs` with `previous` for crashing containers, and `history` for what changed before. Report for \
each problem: the objects and clusters, the evidence, the likely cause, and the next step. Name clusters under `skipped`.",
    },
    Prompt {
        name: "why-moved",
        title: "Explain why a workload moved",
        description: "Trace a workload's moves between clusters to their cause.",
        arguments: &[
            ("kind", "Kind of the workload.", true),
            ("name", "Name of the workload.", true),
            ("namespace", "Namespace of the workload.", false),
        ],
        text: "Explain why {kind} {name} in namespace {namespace} is in its clusters and what moved it. Use `explain`, follow \
the causes in its journal to the root cause, and check the clusters that it left with `search` and `get`. Report the moves \
in chronological order with their causes, and what it waits for now.",
    },
    Prompt {
        name: "access-review",
        title: "Review access",
        description: "List who may do something, directly and indirectly.",
        arguments: &[
            ("verb", "Verb, such as get.", true),
            ("resource", "Resource, such as secrets or deployments.apps.", true),
            ("namespace", "Namespace; all if empty.", false),
        ],
        text: "Review who may {verb} {resource} in namespace {namespace} (all if empty). Use `who_can`, then again with \
`indirect`. Group the subjects by how they get the right, name bindings that are broader than they need to be, and clusters \
whose state is not Complete.",
    },
];

/// Result of `prompts/list`.
pub(crate) fn list() -> Value {
    let argument = |(name, description, required): &(&str, &str, bool)| json!({"name": name, "description": description, "required": required});
    let prompts = PROMPTS.iter().map(|prompt| {
        let arguments: Vec<Value> = prompt.arguments.iter().map(argument).collect();
        json!({"name": prompt.name, "title": prompt.title, "description": prompt.description, "arguments": arguments})
    });
    prompts.collect()
}

/// Result of `prompts/get`. Fails if the prompt is unknown, or an argument is missing or too long.
pub(crate) fn get(params: &Map<String, Value>) -> Result<Value, RpcError> {
    let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
    let prompt = PROMPTS.iter().find(|prompt| prompt.name == name);
    let prompt = prompt.ok_or_else(|| RpcError::invalid_params(format!("unknown prompt: {name:?}")))?;
    let arguments = params.get("arguments").and_then(Value::as_object);
    let mut text = prompt.text.to_owned();
    for (name, _, required) in prompt.arguments {
        let value = arguments.and_then(|arguments| arguments.get(*name)).and_then(Value::as_str).unwrap_or_default();
        if *required && value.is_empty() {
            return Err(RpcError::invalid_params(format!("the argument {name} is missing")));
        }
        if value.len() > MAX_ARGUMENT_BYTES {
            return Err(RpcError::invalid_params(format!("{name} may have at most {MAX_ARGUMENT_BYTES} bytes")));
        }
        text = text.replace(&format!("{{{name}}}"), &format!("{value:?}"));
    }
    Ok(json!({"description": prompt.description,
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}]}))
}
