//! The part of the cache that one request reads: the clusters and namespaces selected by ResourceRegistries, the
//! caller's permissions, and how current each cluster's data is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::selector::{FieldSelector, Selector};
use crowsnest_index::{
    CollectionKey, CollectionState, GlobalCache, ListQuery, ReadPermissions, Record, Topic, selects,
};
use crowsnest_store::{Clusters, Interest, InterestReason, Namespaces};
use serde_json::{Value, json};

use crate::composite::{CachePosition, CompositeVersion, ListId, Portion};
use crate::merged::{Heading, kind_of};
use crate::native::NativePath;
use crate::options::{ListOptions, translate_fields};
use crate::table::columns;
use crate::{Caller, Error};

/// A registered resource as one request sees it.
#[derive(Debug, Clone)]
pub struct View {
    pub resource: Gvr,
    /// Clusters and namespaces of each registry that selects the resource.
    parts: Vec<(Clusters, Namespaces)>,
    /// The namespace of the path; `None` means all namespaces.
    namespace: Option<String>,
    /// The one cluster that the request names.
    only: Option<ClusterName>,
    labels: Option<Selector>,
    fields: Option<FieldSelector>,
    /// The caller's permissions. Only objects that they allow are in view.
    read_permissions: ReadPermissions,
}

/// The queries that a view has in addition to another one, and those that it lacks.
pub struct ViewDifference {
    pub added: Vec<ListQuery>,
    pub removed: Vec<ListQuery>,
}

/// A cluster whose data is missing or stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteCluster {
    pub cluster: ClusterName,
    pub reason: String,
    /// Unix milliseconds of the last contact; `None` if the cluster was never collected completely.
    pub last_contact_ms: Option<i64>,
}

impl View {
    /// The view of a request; None if no ResourceRegistry selects the resource in the cluster `only`, or in any cluster.
    pub async fn for_request(
        cache: &GlobalCache,
        native: &NativePath,
        caller: &Caller,
        only: Option<ClusterName>,
    ) -> Option<Self> {
        let parts = registered_parts(cache, &native.resource, only.as_ref());
        if parts.is_empty() {
            return None;
        }
        Some(Self { parts, only, ..Self::empty(cache, native, caller).await })
    }

    /// A view without objects, for resources that no ResourceRegistry selects.
    pub async fn empty(cache: &GlobalCache, native: &NativePath, caller: &Caller) -> Self {
        let namespace = Some(native.namespace.clone()).filter(|n| !n.is_empty());
        let reading =
            if native.name.is_empty() || native.prefix == "watch" { ReadKind::Listing } else { ReadKind::ByName };
        let read_permissions = cache.searcher().read_permissions(caller, &native.resource, reading).await;
        let (resource, parts) = (native.resource.clone(), Vec::new());
        Self { resource, parts, namespace, only: None, labels: None, fields: None, read_permissions }
    }

    /// The view of the same request under the current ResourceRegistries; None if they no longer select the
    /// resource.
    pub fn under_current_registries(&self, cache: &GlobalCache) -> Option<Self> {
        let parts = registered_parts(cache, &self.resource, self.only.as_ref());
        (!parts.is_empty()).then(|| Self { parts, ..self.clone() })
    }

    /// Updates the caller's permissions. Returns true if they are unchanged.
    pub async fn refresh_permissions(&mut self, cache: &GlobalCache) -> bool {
        let Some(read_permissions) = self.read_permissions.refresh(cache.searcher()).await else { return true };
        let is_unchanged = read_permissions.has_same_access(&self.read_permissions, &self.clusters(cache));
        self.read_permissions = read_permissions;
        is_unchanged
    }

    /// True if the caller may read an object that was returned for [`View::query`].
    pub fn allows(&self, record: &Record) -> bool {
        self.read_permissions.may_read(&record.key)
    }

    /// Drops the namespace filters of ResourceRegistries; search ignores them, as in Karmada.
    pub fn without_namespace_filters(mut self) -> Self {
        for (_, namespaces) in &mut self.parts {
            *namespaces = Namespaces::All;
        }
        self
    }

    /// Identity of a list with these parameters.
    pub fn list_id(&self, query: &Query) -> ListId {
        let selectors = ["labelSelector", "fieldSelector"].map(|name| query.get(name).unwrap_or_default());
        ListId::new(&(&self.resource, &self.namespace, &self.only, selectors))
    }

    /// Applies the selectors of a request.
    pub fn select(mut self, options: ListOptions) -> Result<Self, Error> {
        self.labels = options.labels;
        self.fields = options.fields.map(|fields| translate_fields(&self.resource, fields)).transpose()?;
        Ok(self)
    }

    /// Restricts the view to one name, for a watch on one object.
    pub fn with_name(mut self, name: &str) -> Result<Self, Error> {
        if !name.is_empty() {
            let selector = FieldSelector::parse(&format!("metadata.name={name}"));
            self.fields = Some(selector.map_err(|error| Error::BadRequest(error.to_string()))?);
        }
        Ok(self)
    }

    /// True if the request selects only some of a cluster's objects.
    pub fn is_narrow(&self) -> bool {
        self.namespace.is_some() || self.labels.is_some() || self.fields.is_some()
    }

    /// Registered clusters that are members now, in name order.
    pub fn clusters(&self, cache: &GlobalCache) -> Vec<ClusterName> {
        let members = cache.fleet().members();
        let mut names: Vec<ClusterName> = members.iter().map(|member| member.name().clone()).collect();
        names.retain(|name| self.parts.iter().any(|(clusters, _)| clusters.contains(name)));
        names.sort();
        names
    }

    /// Clusters in view in which the caller may read any objects.
    pub fn readable_clusters(&self, cache: &GlobalCache) -> Vec<ClusterName> {
        let mut names = self.clusters(cache);
        names.retain(|name| self.query(name).is_some());
        names
    }

    /// Filter for the changes that may be in view.
    pub fn topic(&self) -> Topic {
        let name = self.fields.as_ref().and_then(|fields| fields.required_value("metadata.name"));
        Topic {
            resource: self.resource.clone(),
            namespace: self.namespace.as_deref().map(Arc::from),
            name: name.map(Arc::from),
        }
    }

    /// Registered namespaces of a cluster; None if the cluster is not registered.
    fn namespaces(&self, cluster: &ClusterName) -> Option<Namespaces> {
        let mut registered =
            self.parts.iter().filter(|(clusters, _)| clusters.contains(cluster)).map(|(_, n)| n.clone());
        let first = registered.next()?;
        Some(registered.fold(first, |all, more| all.union(&more)))
    }

    /// The part of a cluster's objects that the caller can see, before the filters of this request; `None` if it
    /// is all of them.
    pub fn portion(&self, cluster: &ClusterName) -> Option<Portion> {
        let namespaces = self.namespaces(cluster)?;
        let readable_objects = self
            .read_permissions
            .readable_objects(cluster)
            .filter(|readable_objects| !readable_objects.is_everything());
        let all = namespaces == Namespaces::All && readable_objects.is_none();
        (!all).then(|| Portion::new(&(namespaces, readable_objects)))
    }

    /// The query that lists one cluster; None if no object of it is in view.
    pub fn query(&self, cluster: &ClusterName) -> Option<ListQuery> {
        let allowed = self.namespaces(cluster)?;
        let mut query = ListQuery::new(cluster.clone(), self.resource.clone());
        query.namespaces = match (allowed, &self.namespace) {
            (Namespaces::All, None) => None,
            (Namespaces::All, Some(namespace)) => Some(BTreeSet::from([namespace.clone()])),
            (Namespaces::Names(names), None) => Some(names),
            (Namespaces::Names(names), Some(namespace)) => Some(names.into_iter().filter(|n| n == namespace).collect()),
        };
        if let Some(limit) = self.read_permissions.namespace_limit(cluster) {
            query.namespaces = Some(match query.namespaces {
                Some(namespaces) => namespaces.intersection(&limit).cloned().collect(),
                None => limit,
            });
        }
        if query.namespaces.as_ref().is_some_and(BTreeSet::is_empty) {
            return None;
        }
        query.labels.clone_from(&self.labels);
        query.fields.clone_from(&self.fields);
        Some(query)
    }

    /// The query for the objects of a cluster that are in this view but not in `other`. If this view has all namespaces and
    /// `other` some of them, the result includes those of `other`.
    fn query_except(&self, other: &Self, cluster: &ClusterName) -> Option<ListQuery> {
        let mut query = self.query(cluster)?;
        let Some(other) = other.query(cluster) else { return Some(query) };
        let excluded = other.namespaces?;
        if let Some(namespaces) = &mut query.namespaces {
            namespaces.retain(|namespace| !excluded.contains(namespace));
        }
        query.namespaces.as_ref().is_none_or(|namespaces| !namespaces.is_empty()).then_some(query)
    }

    /// The difference of this view from the view `before` that it replaces, in these clusters.
    pub fn difference_from(&self, before: &Self, clusters: &BTreeSet<ClusterName>) -> ViewDifference {
        let added = clusters.iter().filter_map(|cluster| self.query_except(before, cluster)).collect();
        let removed = clusters.iter().filter_map(|cluster| before.query_except(self, cluster)).collect();
        ViewDifference { added, removed }
    }

    /// The clusters that registries select by name.
    pub fn named_clusters(&self) -> impl Iterator<Item = &ClusterName> {
        let names = self.parts.iter().filter_map(|(clusters, _)| match clusters {
            Clusters::All => None,
            Clusters::Names(names) => Some(names),
        });
        names.flatten()
    }

    /// True if a record is in view. Every watch checks this for each change, so the cheap and most selective checks
    /// are first.
    pub fn shows(&self, record: &Record) -> Result<bool, Error> {
        let key = &record.key;
        if *key.resource() != self.resource || self.namespace.as_deref().is_some_and(|only| *only != *key.namespace) {
            return Ok(false);
        }
        let registered = |(clusters, namespaces): &(Clusters, Namespaces)| {
            clusters.contains(key.cluster()) && namespaces.contains(&key.namespace)
        };
        Ok(self.parts.iter().any(registered)
            && selects(self.labels.as_ref(), self.fields.as_ref(), record)?
            && self.read_permissions.may_read(key))
    }

    /// Kind of the view's objects, or of their list with `suffix`.
    pub fn heading(&self, cache: &GlobalCache, suffix: &str) -> Heading {
        let kind = self.kind(cache).unwrap_or_default();
        let columns = Some(columns(&self.resource.group, &kind));
        let kind = if kind.is_empty() { kind } else { kind + suffix };
        Heading { api_version: self.resource.api_version(), kind, columns }
    }

    /// True if a cluster in view serves the resource.
    pub fn is_served(&self, cache: &GlobalCache) -> bool {
        self.clusters(cache).iter().any(|cluster| self.is_served_in(cache, cluster) == Some(true))
    }

    /// True if no cluster in view serves the resource, and the discovery of all of them is known.
    pub fn is_unserved(&self, cache: &GlobalCache) -> bool {
        let clusters = self.clusters(cache);
        !clusters.is_empty() && clusters.iter().all(|cluster| self.is_served_in(cache, cluster) == Some(false))
    }

    /// True if a cluster serves the resource; None if that is unknown.
    fn is_served_in(&self, cache: &GlobalCache, cluster: &ClusterName) -> Option<bool> {
        let served = cache.served_resources(cluster)?;
        match served.get(&self.resource) {
            Some(_) => Some(true),
            None => (!served.stale.contains(&self.resource.api_version())).then_some(false),
        }
    }

    /// Kind of the objects, in any member.
    pub fn kind(&self, cache: &GlobalCache) -> Option<String> {
        let members = cache.fleet().members();
        kind_of(cache, &self.resource, members.iter().map(|member| member.name().clone()))
    }

    /// Warning for lists and watches of complete objects if fields of this resource are withheld.
    pub fn withheld_warning(&self, cache: &GlobalCache) -> Option<&'static str> {
        let secrets = self.resource.group.is_empty() && &*self.resource.resource == "secrets";
        let options = &cache.options().ingest;
        if secrets && !options.secret_values {
            return Some("values of secrets are withheld from lists and watches; get a secret by name to read them");
        }
        options
            .withheld
            .iter()
            .any(|withheld| withheld.applies_to(&self.resource))
            .then_some("some fields are withheld from lists and watches; get an object by name to read all of it")
    }

    /// The current composite resourceVersion. Taken before a list is read, it is never newer than the list.
    pub fn position(&self, cache: &GlobalCache) -> CompositeVersion {
        let cache_position = CachePosition { seq: cache.seq(), cache: cache.id().clone() };
        let mut position = CompositeVersion::default();
        for cluster in self.clusters(cache) {
            let is_visible = self.read_permissions.may_see(&cluster);
            let version = if is_visible { self.member_version(cache, &cluster) } else { "0".to_owned() };
            let key = self.version_key(cache, &cluster);
            position.set(&key, &version, Some(cache_position.clone()));
            position.set_portion(&key, self.portion(&cluster));
        }
        position
    }

    /// The cluster's key in a resourceVersion: its name, or an alias if the caller may not see the cluster. If the
    /// caller is granted access later, the key changes, and earlier resourceVersions refer to another cluster.
    pub fn version_key(&self, cache: &GlobalCache, cluster: &ClusterName) -> String {
        if self.read_permissions.may_see(cluster) { cluster.to_string() } else { cache.alias(cluster) }
    }

    /// The member's resourceVersion up to which a cluster is cached.
    pub fn member_version(&self, cache: &GlobalCache, cluster: &ClusterName) -> String {
        let state = cache.state(&CollectionKey::new(cluster.clone(), self.resource.clone()));
        let version = state.map(|state| state.resource_version).filter(|version| !version.is_empty());
        version.unwrap_or_else(|| "0".to_owned())
    }

    /// Queries for the clusters that entered the view after the resourceVersion `previous`.
    ///
    /// # Errors
    ///
    /// [`Error::Expired`] if clusters left the view, or the visible part of a known cluster changed: the client received no
    /// events for that, so it has to list again.
    pub fn queries_added_since(
        &self,
        previous: &CompositeVersion,
        cache: &GlobalCache,
    ) -> Result<VecDeque<ListQuery>, Error> {
        let clusters = self.clusters(cache).into_iter();
        let clusters: Vec<(String, ClusterName)> =
            clusters.map(|cluster| (self.version_key(cache, &cluster), cluster)).collect();
        let has_left = |name: &str| clusters.iter().all(|(key, _)| key != name);
        let has_other_portion = |(key, cluster): &(String, ClusterName)| {
            previous.includes(key) && previous.portion(key) != self.portion(cluster)
        };
        if previous.has_leaving_cluster() || previous.clusters().any(has_left) || clusters.iter().any(has_other_portion)
        {
            return Err(Error::Expired);
        }
        let added = clusters.iter().filter(|(key, _)| !previous.includes(key));
        Ok(added.filter_map(|(_, cluster)| self.query(cluster)).collect())
    }

    /// Clusters that the caller may see and whose part is missing or stale. A cluster that does not serve the resource
    /// is complete.
    pub fn incomplete_clusters(&self, cache: &GlobalCache) -> Vec<IncompleteCluster> {
        let visible = self.clusters(cache).into_iter().filter(|cluster| self.read_permissions.may_see(cluster));
        visible.filter_map(|cluster| self.incomplete_cluster(cache, cluster)).collect()
    }

    /// Reason why a cluster's data is missing or stale; None if it is current.
    pub fn incomplete_cluster(&self, cache: &GlobalCache, cluster: ClusterName) -> Option<IncompleteCluster> {
        let state = cache.state(&CollectionKey::new(cluster.clone(), self.resource.clone()));
        if state.as_ref().is_some_and(CollectionState::is_fresh) {
            return None;
        }
        if self.is_served_in(cache, &cluster) == Some(false) {
            return None;
        }
        let (reason, last_contact_ms) = match state {
            Some(state) if state.complete => {
                (format!("watch interrupted: {}", state.stale_reason.unwrap_or_default()), Some(state.last_contact_ms))
            }
            Some(CollectionState { stale_reason: Some(reason), .. }) => (format!("not collected: {reason}"), None),
            Some(_) => ("still being collected".to_owned(), None),
            None => ("not collected yet".to_owned(), None),
        };
        Some(IncompleteCluster { cluster, reason, last_contact_ms })
    }
}

/// Clusters and namespaces of the ResourceRegistries that select a resource, in one cluster if `only` is set.
fn registered_parts(cache: &GlobalCache, resource: &Gvr, only: Option<&ClusterName>) -> Vec<(Clusters, Namespaces)> {
    let interests = cache.interests().all();
    let is_registered = |interest: &Interest| {
        matches!(interest.reason, InterestReason::ResourceRegistry(_)) && interest.resource == *resource
    };
    let part = |Interest { clusters, namespaces, .. }: Interest| match only {
        None => Some((clusters, namespaces)),
        Some(only) => clusters.contains(only).then(|| (Clusters::Names([only.clone()].into()), namespaces)),
    };
    interests.into_iter().filter(is_registered).filter_map(part).collect()
}

impl IncompleteCluster {
    /// Text of the `Warning` header.
    pub fn warning_text(&self, now_ms: i64) -> String {
        let Self { cluster, reason, last_contact_ms } = self;
        match last_contact_ms {
            Some(at) => format!("cluster {cluster} is shown as of {}s ago: {reason}", (now_ms - at).max(0) / 1000),
            None => format!("cluster {cluster} is missing: {reason}"),
        }
    }

    /// Entry of `metadata.incompleteClusters`.
    pub fn metadata_entry(&self) -> Value {
        let mut entry = BTreeMap::from([("cluster", json!(self.cluster)), ("reason", json!(self.reason))]);
        if let Some(at) = self.last_contact_ms.and_then(|at| jiff::Timestamp::from_millisecond(at).ok()) {
            entry.insert("asOf", json!(at.to_string()));
        }
        json!(entry)
    }
}
