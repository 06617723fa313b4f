//! `go-template`: Go's text/template over a document with kubectl's functions. Numbers are float64, as Go decodes JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gotmpl::{Template, TemplateError, Value as TemplateValue};
use serde_json::Value;

/// Keeps the template's source; the parsed form implements neither `Debug` nor `PartialEq`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GoTemplate(String);

impl GoTemplate {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        parse_template(text).map_err(|error| format!("error parsing template {text}, {error}"))?;
        Ok(Self(text.to_owned()))
    }

    pub(super) fn render(&self, root: &Value) -> Result<String, TemplateError> {
        parse_template(&self.0)?.execute_to_string(&to_template_value(root))
    }
}

fn parse_template(text: &str) -> Result<Template, TemplateError> {
    Template::new("output").func("exists", exists).func("base64decode", decode_base64).parse(text)
}

/// kubectl's `exists`: true if the path of keys and indices leads to a value.
fn exists(arguments: &[TemplateValue]) -> Result<TemplateValue, TemplateError> {
    let Some((root, path)) = arguments.split_first() else {
        return Err(TemplateError::Exec("exists requires a value and a path".to_owned()));
    };
    let mut at = root.clone();
    for step in path {
        at = match at.index(step) {
            Ok(TemplateValue::Nil) | Err(_) => return Ok(TemplateValue::Bool(false)),
            Ok(next) => next,
        };
    }
    Ok(TemplateValue::Bool(true))
}

fn decode_base64(arguments: &[TemplateValue]) -> Result<TemplateValue, TemplateError> {
    let text = arguments.first().and_then(TemplateValue::as_str).unwrap_or_default();
    let bytes = STANDARD.decode(text).map_err(|error| TemplateError::Exec(format!("base64 decode failed: {error}")))?;
    Ok(TemplateValue::String(String::from_utf8_lossy(&bytes).as_ref().into()))
}

fn to_template_value(value: &Value) -> TemplateValue {
    match value {
        Value::Null => TemplateValue::Nil,
        Value::Bool(flag) => TemplateValue::Bool(*flag),
        Value::Number(number) => TemplateValue::Float(number.as_f64().unwrap_or_default()),
        Value::String(text) => TemplateValue::String(text.as_str().into()),
        Value::Array(items) => TemplateValue::List(items.iter().map(to_template_value).collect()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str().into(), to_template_value(value)));
            TemplateValue::Map(std::sync::Arc::new(fields.collect()))
        }
    }
}
