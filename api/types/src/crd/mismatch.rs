//! Messages of Go's decoder for fields of a wrong type. Users see them when admission cannot decode their object,
//! so the wording must be equal.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::Kind;

/// Finds the first field in document order whose value does not have the type that the kind declares; returns the
/// message of Go's decoder.
pub fn find_type_mismatch<K: Kind>(object: &Value) -> Option<String> {
    let mut generator = SchemaSettings::draft2019_09().for_serialize().into_generator();
    let fields = K::field_schemas(&mut generator);
    let search = Search { definitions: generator.take_definitions(true), version: K::VERSION };
    let object = object.as_object()?;
    fields.into_iter().find_map(|(name, schema)| {
        let value = object.get(name)?;
        search.find_in(&schema.to_value(), value, name, K::KIND)
    })
}

/// Compares values with the schemas of a kind.
struct Search {
    definitions: Map<String, Value>,
    version: &'static str,
}

impl Search {
    fn find_in(&self, schema: &Value, value: &Value, path: &str, owner: &str) -> Option<String> {
        if value.is_null() {
            return None;
        }
        let (schema, name) = self.resolve(schema)?;
        let expected = json_type(schema)?;
        let is_match = match expected {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => match schema.get("format").and_then(Value::as_str) {
                Some("int32") => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
                Some("int64") => value.as_i64().is_some(),
                _ => value.as_i64().is_some() || value.as_u64().is_some(),
            },
            _ => true,
        };
        if !is_match {
            let found = describe(value, expected);
            let expected_type = self.go_type(schema, name);
            return Some(format!(
                "json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {expected_type}"
            ));
        }
        match value {
            Value::Object(members) => {
                let properties = schema.get("properties");
                let values = schema.get("additionalProperties").filter(|schema| schema.is_object());
                let owner = name.map_or(owner, |name| unqualified_name(name));
                members.iter().find_map(|(key, member)| {
                    let schema = properties.and_then(|properties| properties.get(key)).or(values)?;
                    self.find_in(schema, member, &format!("{path}.{key}"), owner)
                })
            }
            Value::Array(items) => {
                let schema = schema.get("items")?;
                items.iter().find_map(|item| self.find_in(schema, item, path, owner))
            }
            _ => None,
        }
    }

    /// Resolves references and unions with null; returns the schema and its name.
    fn resolve<'s>(&'s self, schema: &'s Value) -> Option<(&'s Value, Option<&'s str>)> {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let name = reference.rsplit('/').next()?;
            return Some((self.definitions.get(name)?, Some(name)));
        }
        match schema.get("anyOf").and_then(Value::as_array) {
            Some(alternatives) => {
                let alternative = alternatives.iter().find(|alternative| alternative["type"] != "null")?;
                self.resolve(alternative)
            }
            None => Some((schema, None)),
        }
    }

    fn go_type(&self, schema: &Value, name: Option<&str>) -> String {
        match (json_type(schema), schema.get("format").and_then(Value::as_str)) {
            (Some("integer"), Some(format)) => format.to_owned(),
            (Some("integer"), None) => "int".to_owned(),
            (Some("boolean"), _) => "bool".to_owned(),
            (Some("string"), _) => "string".to_owned(),
            (Some("array"), _) => format!("[]{}", self.element_type(schema.get("items"))),
            (Some("object"), _) => match (schema.get("additionalProperties"), name) {
                (Some(values), _) if values.is_object() => format!("map[string]{}", self.element_type(Some(values))),
                (_, Some(name)) if name.starts_with("io.k8s.") => format!("v1.{}", unqualified_name(name)),
                (_, Some(name)) => format!("{}.{name}", self.version),
                (_, None) => "map[string]interface {}".to_owned(),
            },
            _ => "interface {}".to_owned(),
        }
    }

    fn element_type(&self, schema: Option<&Value>) -> String {
        match schema.and_then(|schema| self.resolve(schema)) {
            Some((schema, name)) => self.go_type(schema, name),
            None => "interface {}".to_owned(),
        }
    }
}

fn unqualified_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn json_type(schema: &Value) -> Option<&str> {
    match &schema["type"] {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

fn describe(value: &Value, expected: &str) -> String {
    match value {
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if expected == "integer" => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Null | Value::Object(_) => "object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PropagationPolicy;
    use rstest::rstest;

    #[rstest]
    #[case("{spec: {priority: high}}", "string into Go struct field PropagationSpec.spec.priority of type int32")]
    #[case("{spec: {priority: 1.5}}", "number 1.5 into Go struct field PropagationSpec.spec.priority of type int32")]
    #[case(
        "{spec: {priority: 2147483648}}",
        "number 2147483648 into Go struct field PropagationSpec.spec.priority of type int32"
    )]
    #[case("{spec: []}", "array into Go struct field PropagationPolicy.spec of type v1alpha1.PropagationSpec")]
    #[case(
        "{spec: {resourceSelectors: x}}",
        "string into Go struct field PropagationSpec.spec.resourceSelectors of type []v1alpha1.ResourceSelector"
    )]
    #[case(
        "{spec: {resourceSelectors: [{kind: 1}]}}",
        "number into Go struct field ResourceSelector.spec.resourceSelectors.kind of type string"
    )]
    fn messages_equal_those_of_go(#[case] object: &str, #[case] expected: &str) {
        let object = serde_saphyr::from_str(object).unwrap();
        assert_eq!(
            find_type_mismatch::<PropagationPolicy>(&object).unwrap(),
            format!("json: cannot unmarshal {expected}")
        );
    }
}
