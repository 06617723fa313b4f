//! Arguments of a tool call, validated by the tool's schema.

use serde_json::{Map, Value};

use super::ToolError;

/// Maximum length of a text argument in bytes; the query language has the same limit.
const MAX_TEXT_BYTES: usize = 4096;

/// Arguments of a call. All are properties of the tool's schema, and the required ones are set.
pub(crate) struct Arguments<'a>(&'a Map<String, Value>);

fn invalid<T>(message: String) -> Result<T, ToolError> {
    Err(ToolError::Input(message))
}

impl<'a> Arguments<'a> {
    /// Fails if an argument is unknown or a required one is missing.
    pub fn new(arguments: &'a Map<String, Value>, schema: &Value) -> Result<Self, ToolError> {
        let known = schema["properties"].as_object();
        if let Some(name) = arguments.keys().find(|name| known.is_none_or(|known| !known.contains_key(*name))) {
            let known: Vec<&str> = known.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            return invalid(format!("unknown argument {name:?}; arguments are {}", known.join(", ")));
        }
        let parsed = Self(arguments);
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if parsed.value(name).is_none_or(|value| value.as_str() == Some("")) {
                return invalid(format!("the argument {name} is missing"));
            }
        }
        Ok(parsed)
    }

    /// Arguments except those of paging.
    pub fn without_paging(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter().filter(|(name, _)| !matches!(name.as_str(), "cursor" | "max_bytes"))
    }

    fn value(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A text; `None` if the argument is missing.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ToolError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => valid_text(name, text).map(Some),
            Some(_) => invalid(format!("{name} must be a string")),
        }
    }

    /// A text; empty if the argument is missing.
    pub fn text_or_empty(&self, name: &str) -> Result<&'a str, ToolError> {
        Ok(self.text(name)?.unwrap_or_default())
    }

    /// A list of at most `max` texts. A single text is a list with one item.
    pub fn texts(&self, name: &str, max: usize) -> Result<Vec<&'a str>, ToolError> {
        let items = match self.value(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => return Ok(vec![valid_text(name, text)?]),
            Some(Value::Array(items)) => items,
            Some(_) => return invalid(format!("{name} must be a list of strings")),
        };
        if items.len() > max {
            return invalid(format!("{name} may have at most {max} items"));
        }
        let texts = items.iter().map(|item| match item {
            Value::String(text) => valid_text(name, text),
            _ => invalid(format!("{name} must be a list of strings")),
        });
        texts.collect()
    }

    /// An integer from `min` to `max`; `None` if the argument is missing.
    pub fn number(&self, name: &str, min: usize, max: usize) -> Result<Option<usize>, ToolError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        match number.filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => invalid(format!("{name} must be an integer from {min} to {max}")),
        }
    }

    /// A boolean; false if the argument is missing.
    pub fn flag(&self, name: &str) -> Result<bool, ToolError> {
        match self.value(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => invalid(format!("{name} must be true or false")),
        }
    }

    /// One of `values`; the first is the default.
    pub fn choice(&self, name: &str, values: &[&'static str]) -> Result<&'static str, ToolError> {
        let default = values.first().copied().unwrap_or_default();
        let Some(text) = self.text(name)? else { return Ok(default) };
        match values.iter().copied().find(|value| *value == text) {
            Some(value) => Ok(value),
            None => invalid(format!("{name} must be one of {}", values.join(", "))),
        }
    }

    /// A list of at most `max` objects.
    pub fn objects(&self, name: &str, max: usize) -> Result<&'a [Value], ToolError> {
        match self.value(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) if items.iter().all(Value::is_object) && items.len() <= max => {
                Ok(items.as_slice())
            }
            Some(_) => invalid(format!("{name} must be a list of at most {max} objects")),
        }
    }
}

fn valid_text<'t>(name: &str, text: &'t str) -> Result<&'t str, ToolError> {
    match text.len() > MAX_TEXT_BYTES {
        true => invalid(format!("{name} may have at most {MAX_TEXT_BYTES} bytes")),
        false => Ok(text),
    }
}
