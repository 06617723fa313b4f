//! List queries on a collection, and pages of their results.

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::selector::{FieldSelector, Selector};
use crowsnest_store::Error;
use crowsnest_store::Scan;
use crowsnest_store::record::{CollectionKey, Object, Record};
use std::collections::BTreeSet;

/// A list query on one collection; results are in key order.
#[derive(Debug, Clone)]
pub struct ListQuery {
    pub collection: CollectionKey,
    /// None: all namespaces.
    pub namespaces: Option<BTreeSet<String>>,
    pub labels: Option<Selector>,
    pub fields: Option<FieldSelector>,
    /// Start after this (namespace, name), the `next` of the previous page.
    pub after: Option<(String, String)>,
}

impl ListQuery {
    pub fn new(cluster: ClusterName, resource: Gvr) -> Self {
        let collection = CollectionKey::new(cluster, resource);
        Self { collection, namespaces: None, labels: None, fields: None, after: None }
    }

    /// A query for a typed kind.
    pub fn for_kind<K: k8s_openapi::Resource>(cluster: ClusterName) -> Self {
        Self::new(cluster, Gvr::for_type::<K>())
    }

    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespaces = Some(BTreeSet::from([namespace.to_owned()]));
        self
    }

    pub fn with_labels(mut self, selector: Selector) -> Self {
        self.labels = Some(selector);
        self
    }

    /// True if the query selects a record of the collection.
    pub fn matches(&self, record: &Record) -> Result<bool, Error> {
        let is_in_namespaces = self.namespaces.as_ref().is_none_or(|names| names.contains(&*record.key.namespace));
        Ok(is_in_namespaces && selects(self.labels.as_ref(), self.fields.as_ref(), record)?)
    }

    pub(crate) fn scan(&self) -> Scan {
        let (namespaces, after, labels) = (self.namespaces.clone(), self.after.clone(), self.labels.clone());
        Scan { collection: self.collection.clone(), namespaces, after, labels }
    }
}

/// True if both selectors match a record.
pub fn selects(labels: Option<&Selector>, fields: Option<&FieldSelector>, record: &Record) -> Result<bool, Error> {
    if labels.is_some_and(|selector| !selector.matches(&record.labels)) {
        return Ok(false);
    }
    let Some(selector) = fields else { return Ok(true) };
    let printed = &record.printed_object()?.fields;
    // None: the kind does not support the field.
    let value = |field: &str| match field {
        "metadata.name" => Some(&*record.key.name),
        "metadata.namespace" => Some(&*record.key.namespace),
        _ => printed.iter().find(|(name, _)| name == field).map(|(_, value)| value.as_str()),
    };
    Ok(selector.matches_with(|field| value(field).map(std::borrow::Cow::Borrowed)))
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct Page<O = Object> {
    pub objects: Vec<O>,
    /// Start of the next page; None at the end.
    pub next: Option<(String, String)>,
}
