//! `crowsnest explain pods.spec.containers`: documents the fields of a kind from the API server's OpenAPI v3 document,
//! in the format of `kubectl explain`. Has no side effects except for the request.

use std::io::{self, Write};

use anyhow::{anyhow, bail};
use crowsnest_members::ApiResources;
use serde_json::Value;

use super::{list, text};
use crate::clients;
use crate::verbs::get::kind::Kind;

/// Text width in columns.
const TEXT_WIDTH: usize = 76;
const REFERENCE_PREFIX: &str = "#/components/schemas/";
const KINDS_EXTENSION: &str = "x-kubernetes-group-version-kind";

/// A kind and the path of one of its fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FieldPath {
    pub(super) kind: Kind,
    pub(super) path: Vec<String>,
}

impl FieldPath {
    /// Resolves `pods.spec.containers` or `deployments.apps.spec`, optionally in a given API version.
    pub(super) fn resolve(argument: &str, api_version: Option<&str>, served: &ApiResources) -> anyhow::Result<Self> {
        let mut served = served.clone();
        if let Some(version) = api_version {
            served.resources.retain(|resource| resource.gvr.api_version() == version);
        }
        let segments: Vec<&str> = argument.split('.').collect();
        // Groups contain dots too: the longest prefix that names a kind wins.
        let found = (1..=segments.len()).rev().find_map(|at| {
            let kind = Kind::resolve(&segments[..at].join("."), &served)?;
            Some(Self { kind, path: segments[at..].iter().map(|segment| (*segment).to_owned()).collect() })
        });
        found.ok_or_else(|| {
            let within = api_version.map(|version| format!(" in {version}")).unwrap_or_default();
            anyhow!(
                "no resource type {:?}{within}; `crowsnest api-resources` lists them, and KIND/NAME, such as deployment/web, explains an object's placement",
                segments[0]
            )
        })
    }
}

/// Requests the OpenAPI document of a kind's group version.
pub(super) async fn request_document(
    client: &kube::Client,
    cluster: Option<&str>,
    kind: &Kind,
) -> anyhow::Result<Value> {
    let root = if kind.gvr.group.is_empty() { "api" } else { "apis" };
    let version = kind.gvr.api_version();
    let found = clients::find(client, cluster, &format!("/openapi/v3/{root}/{version}")).await?;
    found.ok_or_else(|| anyhow!("{} serves no OpenAPI document of {version}", cluster.unwrap_or("the control plane")))
}

/// A field of a kind, or the kind itself.
pub(super) struct Field<'d> {
    document: &'d Value,
    kind: &'d Kind,
    /// The last element of the path; `None` for the kind itself.
    name: Option<&'d str>,
    schema: &'d Value,
    /// The schema of the field in its parent. It may be a `$ref` with a description of its own.
    reference_schema: &'d Value,
}

/// Finds the field in the document.
pub(super) fn find_field<'d>(document: &'d Value, target: &'d FieldPath) -> anyhow::Result<Field<'d>> {
    let kind = &target.kind;
    let is_kind = |schema: &&Value| {
        list(schema, KINDS_EXTENSION).iter().any(|gvk| {
            text(gvk, "/group") == &*kind.gvr.group
                && text(gvk, "/version") == &*kind.gvr.version
                && text(gvk, "/kind") == kind.kind
        })
    };
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object).into_iter().flatten();
    let found = schemas.map(|(_, schema)| schema).find(is_kind);
    let Some(mut schema) = found else {
        bail!("the OpenAPI document does not describe {} {}", kind.gvr.api_version(), kind.kind)
    };
    let (mut name, mut reference_schema) = (None, schema);
    for (at, field) in target.path.iter().enumerate() {
        let Some(next) = properties(document, schema).into_iter().find(|(name, _)| *name == field) else {
            let fields: Vec<&str> = properties(document, schema).into_iter().map(|(name, _)| name.as_str()).collect();
            let parent = [&[kind.gvr.resource.to_string()][..], &target.path[..at]].concat().join(".");
            match fields.is_empty() {
                true => bail!("field {field:?} does not exist: {parent} has no fields"),
                false => bail!("field {field:?} does not exist: {parent} has {}", fields.join(", ")),
            }
        };
        (name, reference_schema, schema) = (Some(field.as_str()), next.1, value_schema(document, next.1));
    }
    Ok(Field { document, kind, name, schema, reference_schema })
}

/// Resolves a `$ref`.
fn resolve_reference<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match reference(schema) {
        Some(name) => document["components"]["schemas"].get(name).unwrap_or(schema),
        None => schema,
    }
}

/// `io.k8s.api.core.v1.PodSpec`
fn reference(schema: &Value) -> Option<&str> {
    let target = schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref"));
    target.and_then(Value::as_str)?.strip_prefix(REFERENCE_PREFIX)
}

/// The schema with the fields; for arrays and maps, that of their values.
fn value_schema<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    let schema = resolve_reference(document, schema);
    match schema.get("items").or_else(|| schema.get("additionalProperties")).filter(|within| within.is_object()) {
        Some(within) if schema.get("properties").is_none() => value_schema(document, within),
        _ => schema,
    }
}

fn properties<'d>(document: &'d Value, schema: &'d Value) -> Vec<(&'d String, &'d Value)> {
    let mut all: Vec<_> =
        value_schema(document, schema).get("properties").and_then(Value::as_object).into_iter().flatten().collect();
    all.sort_by_key(|(name, _)| *name);
    all
}

/// `[]Container`, `map[string]string`, `integer`
fn type_name(document: &Value, schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        let target = resolve_reference(document, schema);
        // A reference to a non-object type shows that type.
        return match target.get("properties").is_some() || target["type"] == "object" {
            true => name.rsplit('.').next().unwrap_or(name).to_owned(),
            false => type_name(document, target),
        };
    }
    match schema["type"].as_str() {
        Some("array") => format!("[]{}", type_name(document, &schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("map[string]{}", type_name(document, &schema["additionalProperties"]))
        }
        Some("object") => "Object".to_owned(),
        Some(plain) => plain.to_owned(),
        None if schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string" => {
            "IntOrString".to_owned()
        }
        None => "Object".to_owned(),
    }
}

impl Field<'_> {
    pub(super) fn schema(&self) -> &Value {
        self.schema
    }

    pub(super) fn render(&self, out: &mut dyn Write, recursive: bool) -> io::Result<()> {
        if !self.kind.gvr.group.is_empty() {
            writeln!(out, "GROUP:      {}", self.kind.gvr.group)?;
        }
        writeln!(out, "KIND:       {}\nVERSION:    {}\n", self.kind.kind, self.kind.gvr.version)?;
        if let Some(name) = self.name {
            writeln!(out, "FIELD: {name} <{}>\n", type_name(self.document, self.reference_schema))?;
        }
        writeln!(out, "DESCRIPTION:")?;
        let (reference_description, schema_description) =
            (text(self.reference_schema, "/description"), text(self.schema, "/description"));
        let description = if schema_description.is_empty() || schema_description == reference_description {
            reference_description.to_owned()
        } else {
            format!("{reference_description}\n{schema_description}")
        };
        let description = if description.trim().is_empty() { "<empty>".to_owned() } else { description };
        write_wrapped(out, 4, &description)?;
        self.write_enum(out, 4, self.reference_schema)?;
        let fields = properties(self.document, self.schema);
        if fields.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nFIELDS:")?;
        match recursive {
            true => self.write_tree(out, self.schema, &mut Vec::new()),
            false => self.write_fields(out, &fields),
        }
    }

    fn write_fields(&self, out: &mut dyn Write, fields: &[(&String, &Value)]) -> io::Result<()> {
        for (at, (name, field)) in fields.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            self.write_field(out, 2, self.schema, name, field)?;
            self.write_enum(out, 4, field)?;
            let description = text(field, "/description");
            let description = if description.is_empty() {
                text(resolve_reference(self.document, field), "/description")
            } else {
                description
            };
            write_wrapped(out, 4, if description.is_empty() { "<no description>" } else { description })?;
        }
        Ok(())
    }

    fn write_field(
        &self,
        out: &mut dyn Write,
        indent: usize,
        parent: &Value,
        name: &str,
        field: &Value,
    ) -> io::Result<()> {
        let required =
            list(value_schema(self.document, parent), "required").iter().any(|field_name| field_name == name);
        let required = if required { " -required-" } else { "" };
        writeln!(out, "{:indent$}{name}\t<{}>{required}", "", type_name(self.document, field))
    }

    fn write_enum(&self, out: &mut dyn Write, indent: usize, field: &Value) -> io::Result<()> {
        let choices: Vec<String> =
            list(value_schema(self.document, field), "enum").iter().map(super::to_text).collect();
        match choices.is_empty() {
            true => Ok(()),
            false => writeln!(out, "{:indent$}enum: {}", "", choices.join(", ")),
        }
    }

    /// Prints all nested fields; recursive types are not expanded again.
    fn write_tree(&self, out: &mut dyn Write, parent: &Value, ancestors: &mut Vec<String>) -> io::Result<()> {
        for (name, field) in properties(self.document, parent) {
            self.write_field(out, 2 + 2 * ancestors.len(), parent, name, field)?;
            let type_name = defining_type(self.document, field);
            if type_name.is_empty() || !ancestors.contains(&type_name) {
                ancestors.push(type_name);
                self.write_tree(out, field, ancestors)?;
                ancestors.pop();
            }
        }
        Ok(())
    }
}

/// Name of the type that defines a field's fields; empty for inline types.
fn defining_type(document: &Value, schema: &Value) -> String {
    let target = resolve_reference(document, schema);
    let within = target.get("items").or_else(|| target.get("additionalProperties")).filter(|within| within.is_object());
    match (within, target.get("properties").is_some()) {
        (Some(within), false) => defining_type(document, within),
        _ => reference(schema).unwrap_or_default().to_owned(),
    }
}

fn write_wrapped(out: &mut dyn Write, indent: usize, text: &str) -> io::Result<()> {
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > TEXT_WIDTH {
                writeln!(out, "{:indent$}{line}", "")?;
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        match line.is_empty() {
            true => writeln!(out)?,
            false => writeln!(out, "{:indent$}{line}", "")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;
    use crowsnest_members::ApiResource;
    use std::collections::BTreeSet;

    fn served() -> ApiResources {
        let resource = |version: &str, preferred| ApiResource {
            gvr: Gvr::new("example.io", version, "boats"),
            kind: "Boat".to_owned(),
            singular: "boat".to_owned(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: BTreeSet::from(["get".to_owned(), "list".to_owned()]),
            subresources: BTreeSet::new(),
            preferred,
        };
        ApiResources { resources: vec![resource("v1", true), resource("v1beta1", false)], stale: BTreeSet::new() }
    }

    fn render_field(argument: &str, recursive: bool) -> Result<String, String> {
        let document: Value = serde_saphyr::from_str(include_str!("schema.yaml")).unwrap();
        let target = FieldPath::resolve(argument, None, &served()).map_err(|error| error.to_string())?;
        let field = find_field(&document, &target).map_err(|error| error.to_string())?;
        let mut out = Vec::new();
        field.render(&mut out, recursive).unwrap();
        Ok(String::from_utf8(out).unwrap())
    }

    #[rstest::rstest]
    #[case::kind("boats", false, include_str!("schema.boats.txt"))]
    #[case::field("boat.example.io.spec.crew", false, include_str!("schema.crew.txt"))]
    #[case::all("boats", true, include_str!("schema.all.txt"))]
    fn kinds_and_fields_match_their_golden(#[case] argument: &str, #[case] recursive: bool, #[case] expected: &str) {
        let output = render_field(argument, recursive).unwrap();
        assert_eq!(output, expected, "{output}");
    }

    #[rstest::rstest]
    #[case("ships", "no resource type \"ships\"; `crowsnest api-resources` lists them")]
    #[case("boats.spec.sails", "field \"sails\" does not exist: boats.spec has anchor, crew, flags")]
    #[case("boats.kind.x", "field \"x\" does not exist: boats.kind has no fields")]
    fn unknown_kinds_and_fields_are_reported(#[case] argument: &str, #[case] expected: &str) {
        let error = render_field(argument, false).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn api_version_is_respected() {
        let version = |requested: Option<&str>| {
            FieldPath::resolve("boats", requested, &served()).map(|target| target.kind.gvr.api_version())
        };
        assert_eq!(version(None).unwrap(), "example.io/v1");
        assert_eq!(version(Some("example.io/v1beta1")).unwrap(), "example.io/v1beta1");
        assert!(version(Some("example.io/v2")).unwrap_err().to_string().contains("\"boats\" in example.io/v2"));
    }
}
