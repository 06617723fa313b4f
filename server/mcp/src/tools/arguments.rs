//! Arguments of a tool call. The tool's schema states their limits, choices and defaults.

use serde_json::{Map, Value};

use super::ToolError;

/// Maximum length of a text argument in bytes; the query language has the same limit.
const MAX_TEXT_BYTES: usize = 4096;

/// Arguments of a call. All are properties of the tool's schema, and the required ones are set.
pub(crate) struct Arguments<'a> {
    values: &'a Map<String, Value>,
    schema: &'a Value,
}

fn invalid<T>(message: String) -> Result<T, ToolError> {
    Err(ToolError::Input(message))
}

impl<'a> Arguments<'a> {
    /// Fails if an argument is unknown or a required one is missing.
    pub fn new(values: &'a Map<String, Value>, schema: &'a Value) -> Result<Self, ToolError> {
        let properties = schema["properties"].as_object();
        if let Some(name) =
            values.keys().find(|name| properties.is_none_or(|properties| !properties.contains_key(*name)))
        {
            let properties: Vec<&str> = properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            return invalid(format!("unknown argument {name:?}; arguments are {}", properties.join(", ")));
        }
        let parsed = Self { values, schema };
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if parsed.value(name).is_none_or(|value| value.as_str() == Some("")) {
                return invalid(format!("the argument {name} is missing"));
            }
        }
        Ok(parsed)
    }

    /// Arguments except those of paging.
    pub fn without_paging(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.values.iter().filter(|(name, _)| !matches!(name.as_str(), "cursor" | "max_bytes"))
    }

    fn value(&self, name: &str) -> Option<&'a Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// A keyword of the argument's schema.
    fn keyword(&self, name: &str, keyword: &str) -> &'a Value {
        let schema: &'a Value = self.schema;
        &schema["properties"][name][keyword]
    }

    /// A number in the argument's schema; `None` if the schema does not have the keyword.
    fn limit(&self, name: &str, keyword: &str) -> Option<usize> {
        self.keyword(name, keyword).as_u64().and_then(|limit| usize::try_from(limit).ok())
    }

    /// True if the argument is set.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// A text; `None` if the argument is missing.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ToolError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => check_text(name, text).map(Some),
            Some(_) => invalid(format!("{name} must be a string")),
        }
    }

    /// A text; empty if the argument is missing.
    pub fn text_or_empty(&self, name: &str) -> Result<&'a str, ToolError> {
        Ok(self.text(name)?.unwrap_or_default())
    }

    /// A list of texts. A single text is a list with one item.
    pub fn texts(&self, name: &str) -> Result<Vec<&'a str>, ToolError> {
        let max = self.limit(name, "maxItems").unwrap_or(usize::MAX);
        let items = match self.value(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => return Ok(vec![check_text(name, text)?]),
            Some(Value::Array(items)) => items,
            Some(_) => return invalid(format!("{name} must be a list of strings")),
        };
        if items.len() > max {
            return invalid(format!("{name} may have at most {max} items"));
        }
        let texts = items.iter().map(|item| match item {
            Value::String(text) => check_text(name, text),
            _ => invalid(format!("{name} must be a list of strings")),
        });
        texts.collect()
    }

    /// An integer within its limits, or the default.
    pub fn number(&self, name: &str) -> Result<usize, ToolError> {
        let min = self.limit(name, "minimum").unwrap_or_default();
        let max = self.limit(name, "maximum").unwrap_or(usize::MAX);
        let Some(value) = self.value(name) else { return Ok(self.limit(name, "default").unwrap_or(min)) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        match number.filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(number),
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

    /// One of the values of an enum; the first is the default.
    pub fn choice(&self, name: &str) -> Result<&'a str, ToolError> {
        let values: Vec<&str> =
            self.keyword(name, "enum").as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let default = values.first().copied().unwrap_or_default();
        let Some(text) = self.text(name)? else { return Ok(default) };
        match values.contains(&text) {
            true => Ok(text),
            false => invalid(format!("{name} must be one of {}", values.join(", "))),
        }
    }

    /// A list of objects.
    pub fn objects(&self, name: &str) -> Result<&'a [Value], ToolError> {
        let max = self.limit(name, "maxItems").unwrap_or(usize::MAX);
        match self.value(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) if items.iter().all(Value::is_object) && items.len() <= max => {
                Ok(items.as_slice())
            }
            Some(_) => invalid(format!("{name} must be a list of at most {max} objects")),
        }
    }
}

fn check_text<'t>(name: &str, text: &'t str) -> Result<&'t str, ToolError> {
    match text.len() > MAX_TEXT_BYTES {
        true => invalid(format!("{name} may have at most {MAX_TEXT_BYTES} bytes")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn schema() -> Value {
        json!({"type": "object", "required": [], "properties": {
            "limit": {"type": "integer", "minimum": 1, "maximum": 9, "default": 4},
            "view": {"type": "string", "enum": ["short", "long"]},
            "paths": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        }})
    }

    /// The number, choice and list, or the error.
    fn read(values: &Value) -> Result<String, String> {
        let schema = schema();
        let read = || -> Result<String, ToolError> {
            let arguments = Arguments::new(values.as_object().unwrap(), &schema)?;
            Ok(format!("{} {} {:?}", arguments.number("limit")?, arguments.choice("view")?, arguments.texts("paths")?))
        };
        read().map_err(|error| error.to_string())
    }

    #[rstest]
    #[case::defaults(json!({}), Ok("4 short []"))]
    #[case::null(json!({"limit": null, "view": null, "paths": null}), Ok("4 short []"))]
    #[case::smallest(json!({"limit": 1}), Ok("1 short []"))]
    #[case::largest(json!({"limit": 9, "view": "long", "paths": ["a", "b"]}), Ok(r#"9 long ["a", "b"]"#))]
    #[case::one_text(json!({"paths": "a"}), Ok(r#"4 short ["a"]"#))]
    #[case::too_small(json!({"limit": 0}), Err("limit must be an integer from 1 to 9"))]
    #[case::too_large(json!({"limit": 10}), Err("limit must be an integer from 1 to 9"))]
    #[case::no_integer(json!({"limit": "4"}), Err("limit must be an integer from 1 to 9"))]
    #[case::no_choice(json!({"view": "wide"}), Err("view must be one of short, long"))]
    #[case::too_many(json!({"paths": ["a", "b", "c"]}), Err("paths may have at most 2 items"))]
    #[case::unknown(json!({"lines": 1}), Err("unknown argument \"lines\"; arguments are limit, paths, view"))]
    fn the_schema_states_limits_choices_and_defaults(#[case] values: Value, #[case] expected: Result<&str, &str>) {
        assert_eq!(read(&values), expected.map(str::to_owned).map_err(str::to_owned));
    }
}
