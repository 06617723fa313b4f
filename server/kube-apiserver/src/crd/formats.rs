//! Detection of formats in CRD schemas that validation ignores.

use serde_json::Value;

use super::structural::{children, word};

/// Known string formats, without dashes.
const KNOWN: &[&str] = &[
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

/// True if validation recognizes the format of a schema, which is not empty.
pub fn is_recognized(schema: &Value) -> bool {
    let format = word(schema, "format");
    match word(schema, "type") {
        "" | "string" => KNOWN.contains(&format.replace('-', "").as_str()),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Adds the unrecognized formats of a schema, each once.
pub fn unrecognized(schema: &Value, found: &mut Vec<String>) {
    let format = word(schema, "format");
    if !format.is_empty() && !is_recognized(schema) && !found.iter().any(|other| other == format) {
        found.push(format.to_owned());
    }
    for (_, child, _) in children(schema, "") {
        unrecognized(child, found);
    }
}
