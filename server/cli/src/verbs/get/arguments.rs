//! Parses the kinds and names that `get` displays, from the command line or from files. Has no side effects except for
//! reading files.

use anyhow::bail;
use serde_json::Value;

use super::{GetArgs, OperationScope};
use crate::object::{resolve_namespace, text, versioned_kind};

/// A kind, and optionally the name of an object, as the user gave them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RequestedObject {
    pub(super) kind: String,
    pub(super) name: Option<String>,
    /// Namespace of the manifest; `None` for command-line arguments.
    pub(super) namespace: Option<String>,
}

impl RequestedObject {
    fn new(kind: &str, name: Option<&str>) -> Self {
        Self { kind: kind.to_owned(), name: name.map(str::to_owned), namespace: None }
    }

    /// Parses `KIND/NAME`.
    fn parse_kind_and_name(text: &str) -> anyhow::Result<Self> {
        match text.split_once('/') {
            Some((kind, name)) => Ok(Self::new(kind, Some(name))),
            None => bail!("invalid argument {text:?}: expected KIND/NAME like the first argument"),
        }
    }

    /// Kind, name and namespace of a manifest.
    fn from_manifest(object: &Value, namespace: Option<&str>) -> anyhow::Result<Self> {
        let namespace = resolve_namespace(object, namespace)?.map(str::to_owned);
        Ok(Self { kind: versioned_kind(object), name: Some(text(object, "/metadata/name").to_owned()), namespace })
    }
}

impl GetArgs {
    /// Returns the objects to display, from the command line or from files.
    pub(super) async fn requested_objects(&self) -> anyhow::Result<Vec<RequestedObject>> {
        if self.sources.is_empty() {
            return self.parse_arguments();
        }
        if self.all_namespaces {
            bail!("-A requires a KIND, not files");
        }
        let objects = self.sources.objects().await?;
        let requested = objects.iter().map(|object| RequestedObject::from_manifest(object, self.namespace.as_deref()));
        self.validate(requested.collect::<anyhow::Result<_>>()?)
    }

    /// Parses the arguments of the command line.
    pub(super) fn parse_arguments(&self) -> anyhow::Result<Vec<RequestedObject>> {
        let kind = self.kind.as_deref().unwrap_or_default();
        let requested: Vec<RequestedObject> = match kind.contains('/') {
            true => {
                let all = std::iter::once(kind).chain(self.name.iter().map(String::as_str));
                all.map(RequestedObject::parse_kind_and_name).collect::<anyhow::Result<_>>()?
            }
            false => {
                let requested_objects = |kind: &str| match self.name.as_slice() {
                    [] => vec![RequestedObject::new(kind, None)],
                    names => names.iter().map(|name| RequestedObject::new(kind, Some(name))).collect(),
                };
                kind.split(',').filter(|kind| !kind.is_empty()).flat_map(requested_objects).collect()
            }
        };
        self.validate(requested)
    }

    /// Rejects empty or invalid names, and combinations of flags that have no meaning.
    fn validate(&self, requested: Vec<RequestedObject>) -> anyhow::Result<Vec<RequestedObject>> {
        if self.operation_scope == Some(OperationScope::Karmada) && !self.clusters.is_empty() {
            bail!("-s karmada reads the control plane only and cannot be used with --clusters; use -s all for both");
        }
        for name in requested.iter().filter_map(|object| object.name.as_ref()) {
            match name {
                name if name.is_empty() || name.contains('/') => bail!("invalid object name {name:?}"),
                _ if self.all_namespaces => {
                    bail!("a resource cannot be retrieved by name across all namespaces; use -n")
                }
                _ if self.selector.is_some() || self.field_selector.is_some() => {
                    bail!("selectors cannot be used with the name of an object")
                }
                _ => {}
            }
        }
        match requested.as_slice() {
            [] => bail!(
                "{:?} names no kind; `crowsnest api-resources` lists them",
                self.kind.as_deref().unwrap_or_default()
            ),
            [_, _, ..] if self.is_watch() => bail!("-w requires a single kind, or a single object"),
            _ if self.output_watch_events && !self.is_watch() => {
                bail!("--output-watch-events requires --watch or --watch-only")
            }
            _ if self.show_labels && !self.prints_table() => bail!("--show-labels can only be used with table output"),
            _ => Ok(requested),
        }
    }
}
