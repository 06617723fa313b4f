//! The tools, one file each, registered in [`TOOLS`].

mod arguments;
mod cursor;
mod explain;
mod format;
mod get;
mod history;
mod logs;
mod object;
mod plan;
mod related;
mod search;
mod who_can;

use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use self::arguments::Arguments;
use self::cursor::{Cursor, PagePosition, Position};
pub(crate) use self::format::push_leaves;
pub use self::search::MAX_COMPLETE_COLUMN_BYTES;
use crate::api::Api;
use crate::message::RpcError;
use crate::output::structured::Layout;
use crate::output::{DEFAULT_BUDGET_BYTES, MAX_BUDGET_BYTES, MIN_BUDGET_BYTES, RenderedOutput, ToolOutput, row};

/// A tool, which only reads.
pub(crate) struct Tool {
    pub name: &'static str,
    title: &'static str,
    description: &'static str,
    /// JSON Schema of the arguments, without those that all tools have.
    properties: fn() -> Value,
    required: &'static [&'static str],
    /// Sections of the structured content; `None` if the tool has none. If set, each successful answer has structured
    /// content, as the protocol requires.
    layout: Option<&'static Layout>,
    run: for<'c> fn(&'c Call<'c>) -> BoxFuture<'c, Result<Page, ToolError>>,
}

static TOOLS: [&Tool; 8] = [
    &search::TOOL,
    &get::TOOL,
    &history::TOOL,
    &related::TOOL,
    &logs::TOOL,
    &explain::TOOL,
    &plan::TOOL,
    &who_can::TOOL,
];

/// A call of a tool.
pub(crate) struct Call<'c> {
    pub api: &'c dyn Api,
    pub arguments: Arguments<'c>,
    /// Position of the cursor, if the call continues another.
    pub position: Option<Position>,
    /// Maximum size of the output in bytes.
    pub budget: usize,
}

/// The output of a call, and how the next call continues it.
pub(crate) struct Page {
    pub output: ToolOutput,
    pub next: Continuation,
}

/// How to continue after the rows of a page.
pub(crate) enum Continuation {
    /// All rows are in the page; the next call computes them again and skips those that were shown.
    Offset,
    /// All rows of the page fit; the next call continues at this position, if any are left.
    Position(Option<Position>),
    /// The next call continues after the rows that fit. The function maps their number to its position; `None` if no rows
    /// are left.
    AfterRows(Box<dyn FnOnce(usize) -> Option<Position> + Send>),
}

/// Reason why a tool has no output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// The assistant can correct its arguments.
    #[error("{0}")]
    Input(String),
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A violation of the protocol.
    #[error(transparent)]
    Protocol(#[from] RpcError),
}

impl Call<'_> {
    /// Number of rows to skip.
    fn offset(&self) -> usize {
        match &self.position {
            Some(Position::Offset(rows)) => *rows,
            _ => 0,
        }
    }

    /// Continuation token of the API; empty for the first page.
    fn token(&self) -> &str {
        match &self.position {
            Some(Position::Token(token) | Position::Within(PagePosition { token, .. })) => token,
            _ => "",
        }
    }
}

/// The name of a tool as a static string; `None` for unknown tools.
pub(crate) fn tool_name(name: &str) -> Option<&'static str> {
    TOOLS.iter().map(|tool| tool.name).find(|candidate| *candidate == name)
}

/// The result of `tools/list`, the same for all callers.
pub(crate) fn list() -> Value {
    TOOLS.iter().map(|tool| tool.definition()).collect()
}

/// The result of `tools/call`.
pub(crate) async fn call(api: &dyn Api, params: &Map<String, Value>) -> Result<Value, RpcError> {
    let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
    let tool = TOOLS.iter().find(|tool| tool.name == name);
    let tool = tool.ok_or_else(|| RpcError::invalid_params(format!("unknown tool: {name:?}")))?;
    let empty = Map::new();
    let arguments = match params.get("arguments") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(RpcError::invalid_params("\"arguments\" must be an object")),
    };
    match tool.run(api, arguments).await {
        Ok((rendered, is_error)) => Ok(tool_result(rendered, is_error)),
        Err(ToolError::Protocol(error)) => Err(error),
        Err(error) => Ok(tool_result(render_error(&error), true)),
    }
}

/// Output for an error, rendered as data because it may contain names of objects.
fn render_error(error: &ToolError) -> RenderedOutput {
    let mut facts = vec![row(["error", &error.to_string()])];
    if let ToolError::Api(error) = error {
        let causes = error.details.iter().flat_map(|details| &details.causes).take(10);
        facts.extend(causes.map(|cause| row(["cause", &cause.field, &cause.message])));
    }
    ToolOutput { facts, ..ToolOutput::default() }.render(0, MIN_BUDGET_BYTES, |_| None)
}

fn tool_result(rendered: RenderedOutput, is_error: bool) -> Value {
    let mut result = json!({"content": [{"type": "text", "text": rendered.text}], "isError": is_error});
    if let Some(structured) = rendered.structured {
        result["structuredContent"] = structured;
    }
    result
}

impl Tool {
    fn schema(&self) -> Value {
        let mut properties = (self.properties)();
        properties["cursor"] = json!({"type": "string", "description": "Value of `next` of the previous answer."});
        properties["max_bytes"] = json!({"type": "integer", "minimum": MIN_BUDGET_BYTES, "maximum": MAX_BUDGET_BYTES,
            "default": DEFAULT_BUDGET_BYTES});
        json!({"type": "object", "properties": properties, "required": self.required, "additionalProperties": false})
    }

    fn definition(&self) -> Value {
        let mut definition = json!({"name": self.name, "title": self.title, "description": self.description,
            "inputSchema": self.schema(),
            "annotations": {"title": self.title, "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true,
                "openWorldHint": false}});
        if let Some(layout) = self.layout {
            definition["outputSchema"] = layout.schema();
        }
        definition
    }

    /// The output; true if it reports an error.
    async fn run(&self, api: &dyn Api, arguments: &Map<String, Value>) -> Result<(RenderedOutput, bool), ToolError> {
        let schema = self.schema();
        let arguments = Arguments::new(arguments, &schema)?;
        let budget = arguments.number("max_bytes")?;
        let position = match arguments.text("cursor")? {
            Some(text) => Some(Cursor::parse(text, self.name, &arguments)?),
            None => None,
        };
        let call = Call { api, arguments, position, budget };
        let Page { mut output, next } = (self.run)(&call).await?;
        output.layout = self.layout;
        let offset = call.offset();
        let cursor = |position| Cursor::encode(self.name, &call.arguments, position);
        let rendered = match next {
            Continuation::Offset => output.render(offset, budget, |shown| {
                let more = shown > 0 && offset + shown < output.rows.len();
                more.then(|| cursor(Position::Offset(offset + shown)))
            }),
            Continuation::Position(position) => output.render(0, budget, |_| position.map(cursor)),
            Continuation::AfterRows(position_after) => {
                output.render(0, budget, |shown| position_after(shown).map(cursor))
            }
        };
        Ok((rendered, output.is_error))
    }
}
