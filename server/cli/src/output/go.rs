//! `go-template`: Go's text templates over a document, with what kubectl adds to them. Numbers are Go's floats, as JSON is read there.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gotmpl::{Template, TemplateError, Value as Told};
use serde_json::Value;

/// Kept as its text: what was parsed can be neither shown nor compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GoTemplate(String);

impl GoTemplate {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        template(text).map_err(|why| format!("error parsing template {text}, {why}"))?;
        Ok(Self(text.to_owned()))
    }

    pub(super) fn filled(&self, root: &Value) -> Result<String, TemplateError> {
        template(&self.0)?.execute_to_string(&told(root))
    }
}

fn template(text: &str) -> Result<Template, TemplateError> {
    Template::new("output").func("exists", exists).func("base64decode", decoded).parse(text)
}

/// Whether there is something at a path of names and indices.
fn exists(arguments: &[Told]) -> Result<Told, TemplateError> {
    let Some((root, path)) = arguments.split_first() else {
        return Err(TemplateError::Exec("exists wants something to look into".to_owned()));
    };
    let mut at = root.clone();
    for step in path {
        at = match at.index(step) {
            Ok(Told::Nil) | Err(_) => return Ok(Told::Bool(false)),
            Ok(next) => next,
        };
    }
    Ok(Told::Bool(true))
}

fn decoded(arguments: &[Told]) -> Result<Told, TemplateError> {
    let text = arguments.first().and_then(Told::as_str).unwrap_or_default();
    let bytes = STANDARD.decode(text).map_err(|error| TemplateError::Exec(format!("base64 decode failed: {error}")))?;
    Ok(Told::String(String::from_utf8_lossy(&bytes).as_ref().into()))
}

fn told(value: &Value) -> Told {
    match value {
        Value::Null => Told::Nil,
        Value::Bool(flag) => Told::Bool(*flag),
        Value::Number(number) => Told::Float(number.as_f64().unwrap_or_default()),
        Value::String(text) => Told::String(text.as_str().into()),
        Value::Array(items) => Told::List(items.iter().map(told).collect()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str().into(), told(value)));
            Told::Map(std::sync::Arc::new(fields.collect()))
        }
    }
}
