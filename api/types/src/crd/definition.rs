//! Builds the manifest of a CustomResourceDefinition: names, versions and printer columns.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::structural;
use crate::{Kind, Scope};

/// Address of the conversion webhook.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// Base URL; the path `/convert` is added.
    pub url: String,
    /// CA of the webhook's certificate: base64-encoded PEM.
    pub ca_bundle: String,
}

/// A printer column of `kubectl get`.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub name: &'static str,
    /// JSONPath of the value.
    pub path: &'static str,
    /// OpenAPI type of the value.
    pub value_type: &'static str,
    /// If empty, the API server generates one from the path.
    pub description: &'static str,
}

impl Column {
    fn manifest(&self) -> Value {
        let mut column = json!({ "name": self.name, "type": self.value_type, "jsonPath": self.path });
        if !self.description.is_empty() {
            column["description"] = self.description.into();
        }
        column
    }
}

/// One version of a CustomResourceDefinition.
pub(super) struct Version {
    group: &'static str,
    name: &'static str,
    kind: &'static str,
    list_kind: String,
    plural: &'static str,
    scope: Scope,
    description: String,
    /// Schemas of the top-level fields, by name.
    fields: Map<String, Value>,
    required: &'static [&'static str],
    has_status: bool,
    columns: Vec<Column>,
}

impl Version {
    /// The version of a kind, without required fields, status and columns.
    pub fn for_kind<K: Kind>() -> Self {
        // In schemas for serialization, fields that are always written are required.
        let mut generator = SchemaSettings::draft2019_09().for_serialize().into_generator();
        let fields = K::field_schemas(&mut generator);
        let definitions = generator.take_definitions(true);
        let fields = fields
            .into_iter()
            .map(|(name, schema)| (name.to_owned(), structural::convert(schema.to_value(), &definitions)))
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

    /// Sets the top-level fields that are required.
    pub fn with_required(mut self, required: &'static [&'static str]) -> Self {
        self.required = required;
        self
    }

    /// Makes all fields optional, for kinds whose objects are accepted without required fields.
    pub fn without_required_fields(mut self) -> Self {
        self.fields.values_mut().for_each(structural::remove_required);
        self
    }

    /// Enables the status subresource.
    pub fn with_status(mut self) -> Self {
        self.has_status = true;
        self
    }

    /// Enables a status without required fields and limits of values, for kinds whose status Karmada does not validate.
    pub fn with_lenient_status(mut self) -> Self {
        self.fields.get_mut("status").into_iter().for_each(structural::remove_limits);
        self.with_status()
    }

    pub fn with_columns(mut self, columns: Vec<Column>) -> Self {
        self.columns = columns;
        self
    }

    /// The structural schema, with fields that the API server requires to be declared.
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

    fn manifest(&self, is_storage: bool) -> Value {
        let mut schema = self.schema();
        structural::sort_required(&mut schema);
        let mut version = json!({
            "name": self.name,
            "served": true,
            "storage": is_storage,
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

/// A CustomResourceDefinition with all versions of its kind.
pub(super) struct Definition {
    storage_version: Version,
    /// Versions that are served only with a conversion webhook.
    other_versions: Vec<Version>,
    short_name: Option<&'static str>,
    categories: &'static [&'static str],
}

impl Definition {
    /// A definition with this storage version, in the category `karmada-io`.
    pub fn new(storage_version: Version) -> Self {
        Self { storage_version, other_versions: Vec::new(), short_name: None, categories: &["karmada-io"] }
    }

    pub fn with_version(mut self, version: Version) -> Self {
        self.other_versions.push(version);
        self
    }

    pub fn with_short_name(mut self, name: &'static str) -> Self {
        self.short_name = Some(name);
        self
    }

    pub fn without_categories(mut self) -> Self {
        self.categories = &[];
        self
    }

    fn names(&self) -> Value {
        let mut names = json!({
            "kind": self.storage_version.kind,
            "listKind": self.storage_version.list_kind,
            "plural": self.storage_version.plural,
            "singular": self.storage_version.kind.to_lowercase(),
        });
        if let Some(short_name) = self.short_name {
            names["shortNames"] = json!([short_name]);
        }
        if !self.categories.is_empty() {
            names["categories"] = json!(self.categories);
        }
        names
    }

    /// The manifest. Without a conversion webhook, it contains only the storage version.
    pub fn manifest(&self, conversion: Option<&Webhook>) -> Value {
        let mut versions = Vec::new();
        let strategy = match conversion {
            Some(webhook) if !self.other_versions.is_empty() => {
                versions.extend(self.other_versions.iter().map(|version| version.manifest(false)));
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
        versions.push(self.storage_version.manifest(true));
        let scope = match self.storage_version.scope {
            Scope::Namespaced => "Namespaced",
            Scope::Cluster => "Cluster",
        };
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{}.{}", self.storage_version.plural, self.storage_version.group) },
            "spec": {
                "group": self.storage_version.group,
                "names": self.names(),
                "scope": scope,
                "versions": versions,
                "conversion": strategy,
            },
        })
    }
}
