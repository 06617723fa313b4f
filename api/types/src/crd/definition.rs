//! A CustomResourceDefinition: names, versions and columns.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::structural;
use crate::{Kind, Scope};

/// Conversion webhook.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// Base URL; the path `/convert` is added.
    pub url: String,
    /// CA of the webhook's certificate: PEM in base64.
    pub ca_bundle: String,
}

/// A column of `kubectl get`.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub name: &'static str,
    pub path: &'static str,
    pub of: &'static str,
    /// Description in tables; empty: the API server's default.
    pub description: &'static str,
}

impl Column {
    fn manifest(&self) -> Value {
        let mut column = json!({ "name": self.name, "type": self.of, "jsonPath": self.path });
        if !self.description.is_empty() {
            column["description"] = self.description.into();
        }
        column
    }
}

/// One version of a kind.
pub(super) struct Version {
    group: &'static str,
    name: &'static str,
    kind: &'static str,
    list_kind: String,
    plural: &'static str,
    scope: Scope,
    description: String,
    fields: Map<String, Value>,
    required: &'static [&'static str],
    has_status: bool,
    columns: Vec<Column>,
}

impl Version {
    pub fn of<K: Kind>() -> Self {
        // Fields that are always written are required.
        let mut generator = SchemaSettings::draft2019_09().for_serialize().into_generator();
        let fields = K::field_schemas(&mut generator);
        let definitions = generator.take_definitions(true);
        let fields = fields
            .into_iter()
            .map(|(name, schema)| (name.to_owned(), structural::form(schema.to_value(), &definitions)))
            .collect();
        Self {
            group: K::GROUP,
            name: K::VERSION,
            kind: K::KIND,
            list_kind: format!("{}List", K::KIND),
            plural: K::URL_PATH_SEGMENT,
            scope: K::SCOPE,
            description: K::DESCRIPTION.trim().to_owned(),
            fields,
            required: &[],
            has_status: false,
            columns: Vec::new(),
        }
    }

    pub fn requires(mut self, required: &'static [&'static str]) -> Self {
        self.required = required;
        self
    }

    /// Without required fields, for kinds whose server validates them itself.
    pub fn lenient(mut self) -> Self {
        self.fields.values_mut().for_each(structural::remove_required);
        self
    }

    pub fn status(mut self) -> Self {
        self.has_status = true;
        self
    }

    /// A status of which only types are validated, for kinds whose server in Karmada takes any status.
    pub fn unlimited_status(mut self) -> Self {
        self.fields.get_mut("status").into_iter().for_each(structural::remove_limits);
        self.status()
    }

    pub fn columns(mut self, columns: Vec<Column>) -> Self {
        self.columns = columns;
        self
    }

    pub fn schema(&self) -> Value {
        let mut properties = self.fields.clone();
        properties.insert("apiVersion".into(), json!({ "type": "string" }));
        properties.insert("kind".into(), json!({ "type": "string" }));
        properties.insert("metadata".into(), json!({ "type": "object" }));
        let mut schema = json!({ "type": "object", "description": self.description, "properties": properties });
        if !self.required.is_empty() {
            schema["required"] = json!(self.required);
        }
        schema
    }

    fn manifest(&self, stored: bool) -> Value {
        let mut schema = self.schema();
        structural::sort_required(&mut schema);
        let mut version = json!({
            "name": self.name,
            "served": true,
            "storage": stored,
            "schema": { "openAPIV3Schema": schema },
        });
        if self.has_status {
            version["subresources"] = json!({ "status": {} });
        }
        if !self.columns.is_empty() {
            version["additionalPrinterColumns"] = self.columns.iter().map(Column::manifest).collect();
        }
        version
    }
}

/// A kind with all versions. The first one is the storage version.
pub(super) struct Definition {
    stored: Version,
    others: Vec<Version>,
    short_name: Option<&'static str>,
    categories: &'static [&'static str],
}

impl Definition {
    pub fn of(stored: Version) -> Self {
        Self { stored, others: Vec::new(), short_name: None, categories: &["karmada-io"] }
    }

    pub fn also(mut self, version: Version) -> Self {
        self.others.push(version);
        self
    }

    pub fn short(mut self, name: &'static str) -> Self {
        self.short_name = Some(name);
        self
    }

    pub fn uncategorised(mut self) -> Self {
        self.categories = &[];
        self
    }

    fn names(&self) -> Value {
        let mut names = json!({
            "kind": self.stored.kind,
            "listKind": self.stored.list_kind,
            "plural": self.stored.plural,
            "singular": self.stored.kind.to_lowercase(),
        });
        if let Some(short) = self.short_name {
            names["shortNames"] = json!([short]);
        }
        if !self.categories.is_empty() {
            names["categories"] = json!(self.categories);
        }
        names
    }

    pub fn manifest(&self, conversion: Option<&Webhook>) -> Value {
        let mut versions = Vec::new();
        let strategy = match conversion {
            Some(webhook) if !self.others.is_empty() => {
                versions.extend(self.others.iter().map(|version| version.manifest(false)));
                json!({
                    "strategy": "Webhook",
                    "webhook": {
                        "clientConfig": { "url": format!("{}/convert", webhook.url), "caBundle": webhook.ca_bundle },
                        "conversionReviewVersions": ["v1"],
                    },
                })
            }
            _ => json!({ "strategy": "None" }),
        };
        versions.push(self.stored.manifest(true));
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{}.{}", self.stored.plural, self.stored.group) },
            "spec": {
                "group": self.stored.group,
                "names": self.names(),
                "scope": match self.stored.scope { Scope::Namespaced => "Namespaced", Scope::Cluster => "Cluster" },
                "versions": versions,
                "conversion": strategy,
            },
        })
    }
}
