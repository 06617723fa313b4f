//! Parts of a CRD as kube-apiserver prints its internal types in errors: all fields, with their Go names. Pure.

use crowsnest_apimachinery::field::go_json;
use serde_json::Value;

fn text(of: &Value, key: &str) -> String {
    go_json(of.get(key).and_then(Value::as_str).unwrap_or(""))
}

fn or_null(of: &Value, key: &str) -> String {
    of.get(key).map_or_else(|| "null".to_owned(), go_json)
}

fn flag(of: &Value, key: &str) -> bool {
    of.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// A rule of `x-kubernetes-validations`.
pub(super) fn rule(rule: &Value) -> String {
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}"#,
        printed_inside(rule, "rule"),
        printed_inside(rule, "message"),
        printed_inside(rule, "messageExpression"),
        or_null(rule, "reason"),
        printed_inside(rule, "fieldPath"),
        or_null(rule, "optionalOldSelf"),
    )
}

/// A string inside a struct, escaped for HTML as by Go's JSON encoder.
fn printed_inside(of: &Value, key: &str) -> String {
    text(of, key).replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// A schema.
pub(super) fn schema(of: &Value) -> String {
    let nested = |key: &str| of.get(key).filter(|inner| inner.is_object()).map_or_else(|| "null".to_owned(), schema);
    let list = |key: &str| match of.get(key).and_then(Value::as_array) {
        Some(all) => format!("[{}]", all.iter().map(schema).collect::<Vec<_>>().join(",")),
        None => "null".to_owned(),
    };
    let map = |key: &str| match of.get(key).and_then(Value::as_object) {
        Some(all) => {
            let mut entries: Vec<(&String, String)> = all.iter().map(|(name, inner)| (name, schema(inner))).collect();
            entries.sort();
            let entries: Vec<String> =
                entries.iter().map(|(name, inner)| format!("{}:{inner}", go_json(name))).collect();
            format!("{{{}}}", entries.join(","))
        }
        None => "null".to_owned(),
    };
    let items = match of.get("items") {
        Some(Value::Array(_)) => format!(r#"{{"Schema":null,"JSONSchemas":{}}}"#, list("items")),
        Some(Value::Object(_)) => format!(r#"{{"Schema":{},"JSONSchemas":null}}"#, nested("items")),
        _ => "null".to_owned(),
    };
    let or_bool = |key: &str| match of.get(key) {
        Some(Value::Bool(allows)) => format!(r#"{{"Allows":{allows},"Schema":null}}"#),
        Some(Value::Object(_)) => format!(r#"{{"Allows":true,"Schema":{}}}"#, nested(key)),
        _ => "null".to_owned(),
    };
    let rules = match of.get("x-kubernetes-validations").and_then(Value::as_array) {
        Some(all) => format!("[{}]", all.iter().map(rule).collect::<Vec<_>>().join(",")),
        None => "null".to_owned(),
    };
    let fields = [
        ("ID", text(of, "id")),
        ("Schema", text(of, "$schema")),
        ("Ref", or_null(of, "$ref")),
        ("Description", printed_inside(of, "description")),
        ("Type", text(of, "type")),
        ("Nullable", flag(of, "nullable").to_string()),
        ("Format", text(of, "format")),
        ("Title", printed_inside(of, "title")),
        ("Default", or_null(of, "default")),
        ("Maximum", or_null(of, "maximum")),
        ("ExclusiveMaximum", flag(of, "exclusiveMaximum").to_string()),
        ("Minimum", or_null(of, "minimum")),
        ("ExclusiveMinimum", flag(of, "exclusiveMinimum").to_string()),
        ("MaxLength", or_null(of, "maxLength")),
        ("MinLength", or_null(of, "minLength")),
        ("Pattern", printed_inside(of, "pattern")),
        ("MaxItems", or_null(of, "maxItems")),
        ("MinItems", or_null(of, "minItems")),
        ("UniqueItems", flag(of, "uniqueItems").to_string()),
        ("MultipleOf", or_null(of, "multipleOf")),
        ("Enum", or_null(of, "enum")),
        ("MaxProperties", or_null(of, "maxProperties")),
        ("MinProperties", or_null(of, "minProperties")),
        ("Required", or_null(of, "required")),
        ("Items", items),
        ("AllOf", list("allOf")),
        ("OneOf", list("oneOf")),
        ("AnyOf", list("anyOf")),
        ("Not", nested("not")),
        ("Properties", map("properties")),
        ("AdditionalProperties", or_bool("additionalProperties")),
        ("PatternProperties", map("patternProperties")),
        ("Dependencies", or_null(of, "dependencies")),
        ("AdditionalItems", or_bool("additionalItems")),
        ("Definitions", map("definitions")),
        ("ExternalDocs", or_null(of, "externalDocs")),
        ("Example", or_null(of, "example")),
        ("XPreserveUnknownFields", or_null(of, "x-kubernetes-preserve-unknown-fields")),
        ("XEmbeddedResource", flag(of, "x-kubernetes-embedded-resource").to_string()),
        ("XIntOrString", flag(of, "x-kubernetes-int-or-string").to_string()),
        ("XListMapKeys", or_null(of, "x-kubernetes-list-map-keys")),
        ("XListType", or_null(of, "x-kubernetes-list-type")),
        ("XMapType", or_null(of, "x-kubernetes-map-type")),
        ("XValidations", rules),
    ];
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// `spec.versions`. Parts that all versions share are at the top level of the internal type.
pub(super) fn versions(all: &Value, shared: &dyn Fn(&str) -> bool) -> String {
    let all = all.as_array().map(Vec::as_slice).unwrap_or_default();
    let own = |version: &Value, key: &str, show: fn(&Value) -> String| match version.get(key) {
        Some(part) if !shared(key) => show(part),
        _ => "null".to_owned(),
    };
    let one = |version: &Value| {
        format!(
            r#"{{"Name":{},"Served":{},"Storage":{},"Deprecated":{},"DeprecationWarning":{},"Schema":{},"Subresources":{},"AdditionalPrinterColumns":{},"SelectableFields":{}}}"#,
            text(version, "name"),
            flag(version, "served"),
            flag(version, "storage"),
            flag(version, "deprecated"),
            or_null(version, "deprecationWarning"),
            own(version, "schema", |part| {
                let schema = part.get("openAPIV3Schema").map_or_else(|| "null".to_owned(), schema);
                format!(r#"{{"OpenAPIV3Schema":{schema}}}"#)
            }),
            own(version, "subresources", subresources),
            own(version, "additionalPrinterColumns", columns),
            own(version, "selectableFields", |part| each(part, |field| {
                format!(r#"{{"JSONPath":{}}}"#, text(field, "jsonPath"))
            })),
        )
    };
    format!("[{}]", all.iter().map(one).collect::<Vec<_>>().join(","))
}

fn each(list: &Value, show: fn(&Value) -> String) -> String {
    let all: Vec<String> = list.as_array().into_iter().flatten().map(show).collect();
    format!("[{}]", all.join(","))
}

fn subresources(of: &Value) -> String {
    let status = if of.get("status").is_some() { "{}" } else { "null" };
    let scale = of.get("scale").map_or_else(
        || "null".to_owned(),
        |scale| {
            format!(
                r#"{{"SpecReplicasPath":{},"StatusReplicasPath":{},"LabelSelectorPath":{}}}"#,
                text(scale, "specReplicasPath"),
                text(scale, "statusReplicasPath"),
                or_null(scale, "labelSelectorPath"),
            )
        },
    );
    format!(r#"{{"Status":{status},"Scale":{scale}}}"#)
}

fn columns(of: &Value) -> String {
    each(of, |column| {
        format!(
            r#"{{"Name":{},"Type":{},"Format":{},"Description":{},"Priority":{},"JSONPath":{}}}"#,
            text(column, "name"),
            text(column, "type"),
            text(column, "format"),
            printed_inside(column, "description"),
            column.get("priority").and_then(Value::as_i64).unwrap_or(0),
            text(column, "jsonPath"),
        )
    })
}
