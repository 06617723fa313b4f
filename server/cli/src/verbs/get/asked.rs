//! What `get` is asked for: kinds' words and names, on the command line or in files. Pure, but for the files.

use anyhow::bail;
use serde_json::Value;

use super::{GetArgs, OperationScope};
use crate::object::{same_namespace, text, versioned};

/// A kind's word, and the object of it that is meant, if any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) word: String,
    pub(super) name: Option<String>,
    /// Where a file says it.
    pub(super) namespace: Option<String>,
}

impl Asked {
    fn of(word: &str, name: Option<&str>) -> Self {
        Self { word: word.to_owned(), name: name.map(str::to_owned), namespace: None }
    }

    /// Of `KIND/NAME`.
    fn both(text: &str) -> anyhow::Result<Self> {
        match text.split_once('/') {
            Some((kind, name)) => Ok(Self::of(kind, Some(name))),
            None => bail!("{text:?} is no KIND/NAME, as the word before it is"),
        }
    }

    /// Of an object in a file.
    fn of_object(object: &Value, namespace: Option<&str>) -> anyhow::Result<Self> {
        let own = Some(text(object, "/metadata/namespace")).filter(|own| !own.is_empty());
        let namespace = same_namespace(own, namespace)?.map(str::to_owned);
        Ok(Self { word: versioned(object), name: Some(text(object, "/metadata/name").to_owned()), namespace })
    }
}

impl GetArgs {
    /// What is asked for, of the command line or of files.
    pub(super) async fn wanted(&self) -> anyhow::Result<Vec<Asked>> {
        if self.sources.is_empty() {
            return self.asked();
        }
        if self.all_namespaces {
            bail!("files name their objects: -A goes with a kind");
        }
        let objects = self.sources.objects().await?;
        let asked = objects.iter().map(|object| Asked::of_object(object, self.namespace.as_deref()));
        self.checked(asked.collect::<anyhow::Result<_>>()?)
    }

    /// What the words of the command line ask for.
    pub(super) fn asked(&self) -> anyhow::Result<Vec<Asked>> {
        let kind = self.kind.as_deref().unwrap_or_default();
        let asked: Vec<Asked> = match kind.contains('/') {
            true => {
                let all = std::iter::once(kind).chain(self.name.iter().map(String::as_str));
                all.map(Asked::both).collect::<anyhow::Result<_>>()?
            }
            false => {
                let of = |kind: &str| match self.name.as_slice() {
                    [] => vec![Asked::of(kind, None)],
                    names => names.iter().map(|name| Asked::of(kind, Some(name))).collect(),
                };
                kind.split(',').filter(|kind| !kind.is_empty()).flat_map(of).collect()
            }
        };
        self.checked(asked)
    }

    fn checked(&self, asked: Vec<Asked>) -> anyhow::Result<Vec<Asked>> {
        if self.operation_scope == Some(OperationScope::Karmada) && !self.clusters.is_empty() {
            bail!("-s karmada asks the control plane alone, not clusters: -s all asks both");
        }
        for name in asked.iter().filter_map(|asked| asked.name.as_ref()) {
            match name {
                name if name.is_empty() || name.contains('/') => bail!("{name:?} is no name of an object"),
                _ if self.all_namespaces => bail!("an object is not named across all namespaces: say which with -n"),
                _ if self.selector.is_some() || self.field_selector.is_some() => {
                    bail!("selectors may not be given when an object is named")
                }
                _ => {}
            }
        }
        match asked.as_slice() {
            [] => bail!(
                "{:?} names no kind: `crowsnest api-resources` lists them",
                self.kind.as_deref().unwrap_or_default()
            ),
            [_, _, ..] if self.follows() => bail!("-w follows one kind, or one object of it"),
            _ if self.output_watch_events && !self.follows() => {
                bail!("--output-watch-events goes with --watch or --watch-only")
            }
            _ if self.show_labels && !self.as_table() => bail!("--show-labels goes with tables, not with -o"),
            _ => Ok(asked),
        }
    }
}
