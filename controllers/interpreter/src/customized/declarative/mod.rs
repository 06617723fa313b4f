//! Interpretation by Lua scripts. Each call runs in its own Lua VM and depends only on the script and its
//! arguments.

mod budget;
#[cfg(test)]
mod hostile_tests;
mod kube;
mod numbers;
mod pattern;
pub mod pool;
mod sandbox;
mod strings;
mod syntax;
#[cfg(test)]
mod tests;
mod values;

use std::time::Duration;

use crowsnest_api::work::{AggregatedStatusItem, Component, ReplicaRequirements};
use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, MultiValue, Value};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use self::values::CallArguments;
use crate::default::dependencies;
use crowsnest_plan::dependencies::Dependency;

const SCRIPT_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_MEMORY_BYTES: usize = 64 << 20;
const MAX_SCRIPT_BYTES: usize = 1 << 20;
/// Maximum length of a script's error message in a condition or event, in bytes.
const MAX_MESSAGE_BYTES: usize = 4096;
const DEADLINE_EXCEEDED: &str = "context deadline exceeded";

/// Failure of a script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("{0}")]
    Lua(String),
    #[error("no thread was available for the script within {} s", .0.as_secs())]
    NoThread(Duration),
    #[error("the thread of the script panicked")]
    Panicked,
    #[error("the script has {0} bytes; at most {MAX_SCRIPT_BYTES} are allowed")]
    TooLong(usize),
    #[error("not found function {0}")]
    NoFunction(&'static str),
    #[error("expected result type 'table' or 'nil' from GetComponents, but got '{0}'")]
    Components(&'static str),
    #[error("{0}")]
    Dependencies(String),
    #[error("expect the returned {result} type is {expected} but got {found}")]
    Type { result: &'static str, expected: &'static str, found: &'static str },
    #[error("{function} returned an invalid result: {source}")]
    Decode {
        function: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

impl From<mlua::Error> for ScriptError {
    /// Lua's message, without the traceback of wrapped errors.
    fn from(error: mlua::Error) -> Self {
        match &error {
            mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
                ScriptError::from(cause.as_ref().clone())
            }
            mlua::Error::SyntaxError { message, .. }
            | mlua::Error::RuntimeError(message)
            | mlua::Error::MemoryError(message) => {
                let message = message.split("\nstack traceback:").next().unwrap_or_default();
                ScriptError::Lua(truncate_message(message.trim_end()))
            }
            other => ScriptError::Lua(truncate_message(&other.to_string())),
        }
    }
}

/// Truncates a message for a condition or an event.
fn truncate_message(message: &str) -> String {
    let end = message.floor_char_boundary(MAX_MESSAGE_BYTES);
    message.get(..end).unwrap_or_default().to_owned()
}

/// Compiles a script without running it.
pub fn compile(script: &str) -> Result<(), ScriptError> {
    load(&sandbox::create_vm(SCRIPT_TIMEOUT)?, script).map(drop)
}

/// Loads source text only, since precompiled code could escape the sandbox.
fn load(lua: &Lua, script: &str) -> Result<Function, ScriptError> {
    if script.len() > MAX_SCRIPT_BYTES {
        return Err(ScriptError::TooLong(script.len()));
    }
    let read = |text: &str| {
        let chunk = lua.load(text).set_name("=<string>").set_mode(ChunkMode::Text);
        chunk.into_function().map_err(ScriptError::from)
    };
    let compile_error = |text: &str| read(text).err().map(|error| error.to_string());
    read(script).map_err(|error| match error {
        ScriptError::Lua(message) => ScriptError::Lua(syntax::reword_syntax_error(script, &message, compile_error)),
        other => other,
    })
}

/// Calls a script's function, and converts its first two results with `read`.
fn run<T>(
    script: &str,
    function: &'static str,
    arguments: &[&Json],
    read: impl FnOnce(&CallArguments<'_>, Value, Value) -> Result<T, ScriptError>,
) -> Result<T, ScriptError> {
    run_in(&sandbox::create_vm(SCRIPT_TIMEOUT)?, script, function, arguments, read)
}

fn run_in<T>(
    lua: &Lua,
    script: &str,
    function: &'static str,
    arguments: &[&Json],
    read: impl FnOnce(&CallArguments<'_>, Value, Value) -> Result<T, ScriptError>,
) -> Result<T, ScriptError> {
    load(lua, script)?.call::<()>(())?;
    let Value::Function(lua_function) = lua.globals().get::<Value>(function)? else {
        return Err(ScriptError::NoFunction(function));
    };
    let mut call_arguments = CallArguments::new(lua, arguments)?;
    let arguments: MultiValue =
        arguments.iter().map(|argument| call_arguments.push(argument)).collect::<mlua::Result<_>>()?;
    let mut results = lua_function.call::<MultiValue>(arguments)?;
    let mut next = || results.pop_front().unwrap_or_default();
    read(&call_arguments, next(), next())
}

/// Lua's name of the value's type. Lua has only one type of numbers.
fn type_of(value: &Value) -> &'static str {
    if matches!(value, Value::Integer(_)) { "number" } else { value.type_name() }
}

/// Converts a result that must be a table to JSON. `references` is that of [`CallArguments::to_json`].
fn expect_table(
    call_arguments: &CallArguments<'_>,
    result: &'static str,
    value: &Value,
    references: &[&Json],
) -> Result<Json, ScriptError> {
    match value {
        Value::Table(_) => call_arguments.to_json(value, references),
        other => Err(ScriptError::Type { result, expected: "table", found: type_of(other) }),
    }
}

fn decode<T: DeserializeOwned>(function: &'static str, json: Json) -> Result<T, ScriptError> {
    serde_json::from_value(json).map_err(|source| ScriptError::Decode { function, source })
}

/// Converts a table that must be a list. An empty table is an empty list.
fn decode_list<T: DeserializeOwned>(
    call_arguments: &CallArguments<'_>,
    function: &'static str,
    value: &Value,
) -> Result<Vec<T>, ScriptError> {
    decode(function, expect_table(call_arguments, "requires", value, &[&json!([])])?)
}

/// `GetReplicas(obj)`: number of replicas, and the requirements of each.
pub fn replicas(script: &str, object: &Json) -> Result<(i32, Option<ReplicaRequirements>), ScriptError> {
    const FUNCTION: &str = "GetReplicas";
    run(script, FUNCTION, &[object], |call_arguments, count, requirements| {
        let count = match count {
            Value::Integer(count) => i32::try_from(count).unwrap_or(i32::MAX),
            Value::Number(count) => count as i32,
            other => {
                return Err(ScriptError::Type { result: "replica", expected: "number", found: type_of(&other) });
            }
        };
        let requirements = match requirements {
            Value::Nil => None,
            value => Some(decode(FUNCTION, expect_table(call_arguments, "requires", &value, &[])?)?),
        };
        Ok((count, requirements))
    })
}

/// `GetComponents(obj)`: replicas and requirements of several pod templates.
pub fn components(script: &str, object: &Json) -> Result<Vec<Component>, ScriptError> {
    const FUNCTION: &str = "GetComponents";
    run(script, FUNCTION, &[object], |call_arguments, found, _| match found {
        Value::Nil => Ok(Vec::new()),
        Value::Table(_) => decode_list(call_arguments, FUNCTION, &found),
        other => Err(ScriptError::Components(type_of(&other))),
    })
}

/// `ReviseReplica(obj, replica)`: the object with another number of replicas.
pub fn revise(script: &str, object: &Json, replicas: i32) -> Result<Json, ScriptError> {
    run(script, "ReviseReplica", &[object, &json!(replicas)], |call_arguments, revised, _| {
        expect_table(call_arguments, "requires", &revised, &[object])
    })
}

/// `Retain(desiredObj, observedObj)`: the desired object with fields retained from the observed one.
pub fn retain(script: &str, desired: &Json, observed: &Json) -> Result<Json, ScriptError> {
    run(script, "Retain", &[desired, observed], |call_arguments, retained, _| {
        expect_table(call_arguments, "requires", &retained, &[desired, observed])
    })
}

/// `AggregateStatus(desiredObj, statusItems)`: the template with the aggregated status of its members.
pub fn aggregate(script: &str, object: &Json, items: &[AggregatedStatusItem]) -> Result<Json, ScriptError> {
    const FUNCTION: &str = "AggregateStatus";
    let items = serde_json::to_value(items).map_err(|source| ScriptError::Decode { function: FUNCTION, source })?;
    run(script, FUNCTION, &[object, &items], |call_arguments, aggregated, _| {
        expect_table(call_arguments, "requires", &aggregated, &[object])
    })
}

/// `ReflectStatus(obj)`: the status of a member object to report.
pub fn reflect(script: &str, object: &Json) -> Result<Json, ScriptError> {
    run(script, "ReflectStatus", &[object], |call_arguments, status, _| {
        expect_table(call_arguments, "replica", &status, object.get("status").as_slice())
    })
}

/// `InterpretHealth(obj)`: true if the object is healthy.
pub fn health(script: &str, object: &Json) -> Result<bool, ScriptError> {
    run(script, "InterpretHealth", &[object], |_, healthy, _| match healthy {
        Value::Boolean(healthy) => Ok(healthy),
        other => Err(ScriptError::Type { result: "health", expected: "bool", found: type_of(&other) }),
    })
}

/// `GetDependencies(obj)`: the objects to propagate along with it.
pub fn dependencies(script: &str, object: &Json) -> Result<Vec<Dependency>, ScriptError> {
    let dependencies = run(script, "GetDependencies", &[object], |call_arguments, dependencies, _| {
        decode_list(call_arguments, "GetDependencies", &dependencies)
    })?;
    dependencies::verify(&dependencies).map_err(ScriptError::Dependencies)?;
    Ok(dependencies)
}
