//! Prints parts of a CRD as kube-apiserver prints its internal types in errors: all fields, with their Go names. Has no
//! side effects.

use crowsnest_apimachinery::field::go_json;
use serde_json::Value;

/// A string as JSON; empty if it is missing.
fn text(object: &Value, key: &str) -> String {
    go_json(object.get(key).and_then(Value::as_str).unwrap_or(""))
}

fn value_or_null(object: &Value, key: &str) -> String {
    object.get(key).map_or_else(|| "null".to_owned(), go_json)
}

fn flag(object: &Value, key: &str) -> bool {
    object.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// Prints a rule of `x-kubernetes-validations`.
pub(super) fn print_rule(rule: &Value) -> String {
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}"#,
        escaped_text(rule, "rule"),
        escaped_text(rule, "message"),
        escaped_text(rule, "messageExpression"),
        value_or_null(rule, "reason"),
        escaped_text(rule, "fieldPath"),
        value_or_null(rule, "optionalOldSelf"),
    )
}

/// A string as JSON, escaped for HTML as by Go's JSON encoder.
fn escaped_text(object: &Value, key: &str) -> String {
    text(object, key).replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Prints a schema.
pub(super) fn print_schema(schema: &Value) -> String {
    let nested =
        |key: &str| schema.get(key).filter(|inner| inner.is_object()).map_or_else(|| "null".to_owned(), print_schema);
    let list = |key: &str| match schema.get(key).and_then(Value::as_array) {
        Some(all) => format!("[{}]", all.iter().map(print_schema).collect::<Vec<_>>().join(",")),
        None => "null".to_owned(),
    };
    let map = |key: &str| match schema.get(key).and_then(Value::as_object) {
        Some(all) => {
            let mut entries: Vec<(&String, String)> =
                all.iter().map(|(name, inner)| (name, print_schema(inner))).collect();
            entries.sort();
            let entries: Vec<String> =
                entries.iter().map(|(name, inner)| format!("{}:{inner}", go_json(name))).collect();
            format!("{{{}}}", entries.join(","))
        }
        None => "null".to_owned(),
    };
    let items = match schema.get("items") {
        Some(Value::Array(_)) => format!(r#"{{"Schema":null,"JSONSchemas":{}}}"#, list("items")),
        Some(Value::Object(_)) => format!(r#"{{"Schema":{},"JSONSchemas":null}}"#, nested("items")),
        _ => "null".to_owned(),
    };
    let schema_or_bool = |key: &str| match schema.get(key) {
        Some(Value::Bool(allows)) => format!(r#"{{"Allows":{allows},"Schema":null}}"#),
        Some(Value::Object(_)) => format!(r#"{{"Allows":true,"Schema":{}}}"#, nested(key)),
        _ => "null".to_owned(),
    };
    let rules = match schema.get("x-kubernetes-validations").and_then(Value::as_array) {
        Some(all) => format!("[{}]", all.iter().map(print_rule).collect::<Vec<_>>().join(",")),
        None => "null".to_owned(),
    };
    let fields = [
        ("ID", text(schema, "id")),
        ("Schema", text(schema, "$schema")),
        ("Ref", value_or_null(schema, "$ref")),
        ("Description", escaped_text(schema, "description")),
        ("Type", text(schema, "type")),
        ("Nullable", flag(schema, "nullable").to_string()),
        ("Format", text(schema, "format")),
        ("Title", escaped_text(schema, "title")),
        ("Default", value_or_null(schema, "default")),
        ("Maximum", value_or_null(schema, "maximum")),
        ("ExclusiveMaximum", flag(schema, "exclusiveMaximum").to_string()),
        ("Minimum", value_or_null(schema, "minimum")),
        ("ExclusiveMinimum", flag(schema, "exclusiveMinimum").to_string()),
        ("MaxLength", value_or_null(schema, "maxLength")),
        ("MinLength", value_or_null(schema, "minLength")),
        ("Pattern", escaped_text(schema, "pattern")),
        ("MaxItems", value_or_null(schema, "maxItems")),
        ("MinItems", value_or_null(schema, "minItems")),
        ("UniqueItems", flag(schema, "uniqueItems").to_string()),
        ("MultipleOf", value_or_null(schema, "multipleOf")),
        ("Enum", value_or_null(schema, "enum")),
        ("MaxProperties", value_or_null(schema, "maxProperties")),
        ("MinProperties", value_or_null(schema, "minProperties")),
        ("Required", value_or_null(schema, "required")),
        ("Items", items),
        ("AllOf", list("allOf")),
        ("OneOf", list("oneOf")),
        ("AnyOf", list("anyOf")),
        ("Not", nested("not")),
        ("Properties", map("properties")),
        ("AdditionalProperties", schema_or_bool("additionalProperties")),
        ("PatternProperties", map("patternProperties")),
        ("Dependencies", value_or_null(schema, "dependencies")),
        ("AdditionalItems", schema_or_bool("additionalItems")),
        ("Definitions", map("definitions")),
        ("ExternalDocs", value_or_null(schema, "externalDocs")),
        ("Example", value_or_null(schema, "example")),
        ("XPreserveUnknownFields", value_or_null(schema, "x-kubernetes-preserve-unknown-fields")),
        ("XEmbeddedResource", flag(schema, "x-kubernetes-embedded-resource").to_string()),
        ("XIntOrString", flag(schema, "x-kubernetes-int-or-string").to_string()),
        ("XListMapKeys", value_or_null(schema, "x-kubernetes-list-map-keys")),
        ("XListType", value_or_null(schema, "x-kubernetes-list-type")),
        ("XMapType", value_or_null(schema, "x-kubernetes-map-type")),
        ("XValidations", rules),
    ];
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// Prints `spec.versions`. Fields for which `is_shared` is true are equal in all versions and thus at the top level of
/// the internal type.
pub(super) fn print_versions(versions: &Value, is_shared: &dyn Fn(&str) -> bool) -> String {
    let versions = versions.as_array().map(Vec::as_slice).unwrap_or_default();
    let own_field = |version: &Value, key: &str, print: fn(&Value) -> String| match version.get(key) {
        Some(part) if !is_shared(key) => print(part),
        _ => "null".to_owned(),
    };
    let print_version = |version: &Value| {
        format!(
            r#"{{"Name":{},"Served":{},"Storage":{},"Deprecated":{},"DeprecationWarning":{},"Schema":{},"Subresources":{},"AdditionalPrinterColumns":{},"SelectableFields":{}}}"#,
            text(version, "name"),
            flag(version, "served"),
            flag(version, "storage"),
            flag(version, "deprecated"),
            value_or_null(version, "deprecationWarning"),
            own_field(version, "schema", |part| {
                let schema = part.get("openAPIV3Schema").map_or_else(|| "null".to_owned(), print_schema);
                format!(r#"{{"OpenAPIV3Schema":{schema}}}"#)
            }),
            own_field(version, "subresources", print_subresources),
            own_field(version, "additionalPrinterColumns", print_columns),
            own_field(version, "selectableFields", |part| print_list(part, |field| {
                format!(r#"{{"JSONPath":{}}}"#, text(field, "jsonPath"))
            })),
        )
    };
    format!("[{}]", versions.iter().map(print_version).collect::<Vec<_>>().join(","))
}

fn print_list(list: &Value, print: fn(&Value) -> String) -> String {
    let all: Vec<String> = list.as_array().into_iter().flatten().map(print).collect();
    format!("[{}]", all.join(","))
}

fn print_subresources(subresources: &Value) -> String {
    let status = if subresources.get("status").is_some() { "{}" } else { "null" };
    let scale = subresources.get("scale").map_or_else(
        || "null".to_owned(),
        |scale| {
            format!(
                r#"{{"SpecReplicasPath":{},"StatusReplicasPath":{},"LabelSelectorPath":{}}}"#,
                text(scale, "specReplicasPath"),
                text(scale, "statusReplicasPath"),
                value_or_null(scale, "labelSelectorPath"),
            )
        },
    );
    format!(r#"{{"Status":{status},"Scale":{scale}}}"#)
}

fn print_columns(columns: &Value) -> String {
    print_list(columns, |column| {
        format!(
            r#"{{"Name":{},"Type":{},"Format":{},"Description":{},"Priority":{},"JSONPath":{}}}"#,
            text(column, "name"),
            text(column, "type"),
            text(column, "format"),
            escaped_text(column, "description"),
            column.get("priority").and_then(Value::as_i64).unwrap_or(0),
            text(column, "jsonPath"),
        )
    })
}
