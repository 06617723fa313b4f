//! Definitions whose objects are generated: those of this folder and, with `CROWSNEST_DEFINITIONS`, others.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

pub struct Version {
    pub name: String,
    pub schema: Value,
    pub has_status: bool,
    /// Path of the replicas in the spec; empty without a scale subresource.
    pub replicas: Vec<String>,
    pub selectable: Vec<String>,
}

pub struct Definition {
    pub body: Value,
    pub name: String,
    pub group: String,
    pub plural: String,
    pub kind: String,
    pub is_namespaced: bool,
    /// Served versions; there is at least one.
    pub versions: Vec<Version>,
}

impl Definition {
    /// `None` if no version is served.
    fn parse(body: Value) -> Result<Option<Self>> {
        let text = |pointer: &str| {
            let found = body.pointer(pointer).and_then(Value::as_str);
            found.map(str::to_owned).with_context(|| format!("a definition has no {pointer}"))
        };
        let versions = body["spec"]["versions"].as_array().context("a definition has no versions")?;
        let versions: Vec<Version> = versions.iter().filter(|version| version["served"] == true).map(version).collect();
        if versions.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            name: text("/metadata/name")?,
            group: text("/spec/group")?,
            plural: text("/spec/names/plural")?,
            kind: text("/spec/names/kind")?,
            is_namespaced: body["spec"]["scope"] == "Namespaced",
            versions,
            body,
        }))
    }

    /// Path of the collection in a version.
    pub fn collection(&self, version: &Version) -> String {
        let namespace = if self.is_namespaced { "namespaces/default/" } else { "" };
        format!("/apis/{}/{}/{namespace}{}", self.group, version.name, self.plural)
    }
}

fn version(version: &Value) -> Version {
    let replicas = version["subresources"]["scale"]["specReplicasPath"].as_str().unwrap_or_default();
    let selectable = version["selectableFields"].as_array().into_iter().flatten();
    let selectable = selectable.filter_map(|field| field["jsonPath"].as_str());
    Version {
        name: version["name"].as_str().unwrap_or_default().to_owned(),
        schema: version["schema"]["openAPIV3Schema"].clone(),
        has_status: version["subresources"]["status"].is_object(),
        replicas: replicas.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        selectable: selectable.map(|path| path.trim_start_matches('.').to_owned()).collect(),
    }
}

/// The definitions in a folder's YAML files, also in folders below.
pub fn read_definitions(folder: &Path) -> Result<Vec<Definition>> {
    let mut definitions = Vec::new();
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    for path in entries.iter().map(fs::DirEntry::path) {
        if path.is_dir() {
            definitions.extend(read_definitions(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            let text = fs::read_to_string(&path)?;
            let documents = serde_saphyr::from_multiple::<Value>(&text);
            for document in documents.with_context(|| path.display().to_string())? {
                if document["kind"] == "CustomResourceDefinition" {
                    definitions.extend(Definition::parse(document)?);
                }
            }
        }
    }
    Ok(definitions)
}
