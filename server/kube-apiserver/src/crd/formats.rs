//! Detection of formats in CRD schemas that validation ignores.

use serde_json::Value;

use super::structural::{children, string};

/// Known string formats, without dashes.
const STRING_FORMATS: &[&str] = &[
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// True if validation recognizes the format of a schema. The format must not be empty.
pub fn is_recognized(schema: &Value) -> bool {
    let format = string(schema, "format");
    match string(schema, "type") {
        "" | "string" => STRING_FORMATS.contains(&format.replace('-', "").as_str()),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Adds the unrecognized formats of a schema and its children, each once.
pub fn collect_unrecognized(schema: &Value, found: &mut Vec<String>) {
    let format = string(schema, "format");
    if !format.is_empty() && !is_recognized(schema) && !found.iter().any(|existing| existing == format) {
        found.push(format.to_owned());
    }
    for (_, child, _) in children(schema, "") {
        collect_unrecognized(child, found);
    }
}
