//! What one request may see of the cache: the clusters and namespaces that ResourceRegistries ask for, and how far each
//! cluster's part of it is known.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::rbac::Reading;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::selector::{FieldSelector, Selector};
use crowsnest_index::{CollectionKey, CollectionState, Index, ListQuery, Reader, Record, Topic, selects};
use crowsnest_store::{Clusters, Interest, Namespaces, Why};
use serde_json::{Value, json};

use crate::composite::{Composite, ListId, Place, Portion};
use crate::native::Native;
use crate::options::{ListOptions, known_fields};
use crate::{Caller, Error};

/// A registered resource as one request sees it.
#[derive(Debug, Clone)]
pub struct View {
    pub resource: Gvr,
    /// Registered parts: which clusters, which namespaces of them.
    parts: Vec<(Clusters, Namespaces)>,
    /// The namespace of the path; none is all.
    namespace: Option<String>,
    /// The one cluster that is asked for.
    only: Option<ClusterName>,
    labels: Option<Selector>,
    fields: Option<FieldSelector>,
    /// Nothing else is in view (invariant I9).
    reader: Reader,
}

/// A cluster whose answer is missing or old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomplete {
    pub cluster: ClusterName,
    pub why: String,
    /// When it was last heard of, Unix milliseconds; none: never.
    pub heard_at: Option<i64>,
}

impl View {
    /// None when no ResourceRegistry asks for the resource, of the one cluster where one is named.
    pub async fn of(index: &Index, native: &Native, caller: &Caller, only: Option<ClusterName>) -> Option<Self> {
        let parts = registered(index, &native.resource, only.as_ref());
        if parts.is_empty() {
            return None;
        }
        Some(Self { parts, only, ..Self::empty(index, native, caller).await })
    }

    /// A view of nothing, for resources nobody registered.
    pub async fn empty(index: &Index, native: &Native, caller: &Caller) -> Self {
        let namespace = Some(native.namespace.clone()).filter(|n| !n.is_empty());
        let reading =
            if native.name.is_empty() || native.prefix == "watch" { Reading::Listing } else { Reading::ByName };
        let reader = index.searcher().reader(caller, &native.resource, reading).await;
        let (resource, parts) = (native.resource.clone(), Vec::new());
        Self { resource, parts, namespace, only: None, labels: None, fields: None, reader }
    }

    /// The same request's view of what is registered now; none when nothing of it is.
    pub fn again(&self, index: &Index) -> Option<Self> {
        let parts = registered(index, &self.resource, self.only.as_ref());
        (!parts.is_empty()).then(|| Self { parts, ..self.clone() })
    }

    /// Whether its caller may read the same still. What they may read from now on holds then.
    pub async fn is_allowed_still(&mut self, index: &Index) -> bool {
        let Some(reader) = self.reader.renewed(index.searcher()).await else { return true };
        let same = reader.allows_the_same(&self.reader, &self.clusters(index));
        self.reader = reader;
        same
    }

    /// Of what was asked for by [`View::query`], whether it may be read.
    pub fn allows(&self, record: &Record) -> bool {
        self.reader.may_read(&record.key)
    }

    /// Search ignores the namespaces of registries, as Karmada does.
    pub fn whole_clusters(mut self) -> Self {
        for (_, namespaces) in &mut self.parts {
            *namespaces = Namespaces::All;
        }
        self
    }

    /// Identity of a list with these parameters.
    pub fn list_id(&self, query: &Query) -> ListId {
        let selectors = ["labelSelector", "fieldSelector"].map(|name| query.get(name).unwrap_or_default());
        ListId::of(&(&self.resource, &self.namespace, &self.only, selectors))
    }

    /// With the selectors of a request.
    pub fn select(mut self, options: ListOptions) -> Result<Self, Error> {
        self.labels = options.labels;
        self.fields = options.fields.map(|fields| known_fields(&self.resource, fields)).transpose()?;
        Ok(self)
    }

    /// Restricted to one name, for a watch on one object.
    pub fn named(mut self, name: &str) -> Result<Self, Error> {
        if !name.is_empty() {
            let selector = FieldSelector::parse(&format!("metadata.name={name}"));
            self.fields = Some(selector.map_err(|error| Error::BadRequest(error.to_string()))?);
        }
        Ok(self)
    }

    /// Whether only some of a cluster's objects are asked for.
    pub fn is_narrow(&self) -> bool {
        self.namespace.is_some() || self.labels.is_some() || self.fields.is_some()
    }

    /// Registered clusters that are members now, in name order.
    pub fn clusters(&self, index: &Index) -> Vec<ClusterName> {
        let members = index.fleet().members();
        let mut names: Vec<ClusterName> = members.iter().map(|member| member.name().clone()).collect();
        names.retain(|name| self.parts.iter().any(|(clusters, _)| clusters.contains(name)));
        names.sort();
        names
    }

    /// Those of them that its caller may read anything of.
    pub fn read(&self, index: &Index) -> Vec<ClusterName> {
        let mut names = self.clusters(index);
        names.retain(|name| self.query(name).is_some());
        names
    }

    /// What changes are of that may be in view.
    pub fn topic(&self) -> Topic {
        let name = self.fields.as_ref().and_then(|fields| fields.required_value("metadata.name"));
        Topic {
            resource: self.resource.clone(),
            namespace: self.namespace.as_deref().map(Arc::from),
            name: name.map(Arc::from),
        }
    }

    /// Those of a cluster that are registered; none when it is not.
    fn namespaces(&self, cluster: &ClusterName) -> Option<Namespaces> {
        let mut asked = self.parts.iter().filter(|(clusters, _)| clusters.contains(cluster)).map(|(_, n)| n.clone());
        let first = asked.next()?;
        Some(asked.fold(first, |all, more| all.union(&more)))
    }

    /// What of a cluster its caller could be shown, whatever this request asks for; none: all of it.
    pub fn portion(&self, cluster: &ClusterName) -> Option<Portion> {
        let namespaces = self.namespaces(cluster)?;
        let extent = self.reader.extent(cluster).filter(|extent| !extent.is_everything());
        let all = namespaces == Namespaces::All && extent.is_none();
        (!all).then(|| Portion::of(&(namespaces, extent)))
    }

    /// What to list in one cluster; none when nothing of it is in view.
    pub fn query(&self, cluster: &ClusterName) -> Option<ListQuery> {
        let allowed = self.namespaces(cluster)?;
        let mut query = ListQuery::new(cluster.clone(), self.resource.clone());
        query.namespaces = match (allowed, &self.namespace) {
            (Namespaces::All, None) => None,
            (Namespaces::All, Some(namespace)) => Some(BTreeSet::from([namespace.clone()])),
            (Namespaces::Names(names), None) => Some(names),
            (Namespaces::Names(names), Some(namespace)) => Some(names.into_iter().filter(|n| n == namespace).collect()),
        };
        if let Some(limit) = self.reader.limit(cluster) {
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

    /// What of a cluster is in view here and not there. Of all namespaces against some, those are in it as well.
    fn beyond(&self, other: &Self, cluster: &ClusterName) -> Option<ListQuery> {
        let mut here = self.query(cluster)?;
        let Some(there) = other.query(cluster) else { return Some(here) };
        let there = there.namespaces?;
        if let Some(namespaces) = &mut here.namespaces {
            namespaces.retain(|namespace| !there.contains(namespace));
        }
        here.namespaces.as_ref().is_none_or(|namespaces| !namespaces.is_empty()).then_some(here)
    }

    /// What comes into view of these clusters, and what leaves it, when this view follows another one.
    pub fn turn(&self, before: &Self, clusters: &BTreeSet<ClusterName>) -> (Vec<ListQuery>, Vec<ListQuery>) {
        let come = clusters.iter().filter_map(|cluster| self.beyond(before, cluster));
        let leave = clusters.iter().filter_map(|cluster| before.beyond(self, cluster));
        (come.collect(), leave.collect())
    }

    /// The clusters it has by name.
    pub fn named_clusters(&self) -> impl Iterator<Item = &ClusterName> {
        let names = self.parts.iter().filter_map(|(clusters, _)| match clusters {
            Clusters::All => None,
            Clusters::Names(names) => Some(names),
        });
        names.flatten()
    }

    /// Whether a record is in view. Each watch asks it of each change: what is cheap and mostly says no comes first.
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
            && self.reader.may_read(key))
    }

    /// Kind of the objects, from whoever knows it: members, then the control plane.
    pub fn kind(&self, index: &Index) -> Option<String> {
        let members = index.fleet().members();
        let names = members.iter().map(|member| member.name().clone());
        names.chain([ClusterName::control_plane()]).find_map(|cluster| {
            let key = CollectionKey::new(cluster, self.resource.clone());
            let known = index.state(&key).map(|state| state.kind.to_string()).filter(|kind| !kind.is_empty());
            known.or_else(|| index.served(&key.cluster)?.get(&self.resource).map(|served| served.kind.clone()))
        })
    }

    /// What a reader of whole objects has to know: that they are not whole.
    pub fn withholds(&self, index: &Index) -> Option<&'static str> {
        let secrets = self.resource.group.is_empty() && &*self.resource.resource == "secrets";
        let keep = &index.options().keep;
        if secrets && !keep.secret_values {
            return Some("values of secrets are withheld from lists and watches; get a secret by name to read them");
        }
        keep.withheld
            .iter()
            .any(|withheld| withheld.is_of(&self.resource))
            .then_some("parts of these are withheld from lists and watches; get one by name to read all of it")
    }

    /// The composite resourceVersion of now. Taken before a list, it never says more than the list shows.
    pub fn position(&self, index: &Index) -> Composite {
        let place = Place { seq: index.seq(), cache: index.id().clone() };
        let mut position = Composite::default();
        for cluster in self.clusters(index) {
            let known = self.reader.knows_of(&cluster);
            let version = if known { self.version(index, &cluster) } else { "0".to_owned() };
            let label = self.label(index, &cluster);
            position.set(&label, &version, Some(place.clone()));
            position.show(&label, self.portion(&cluster));
        }
        position
    }

    /// Label of a cluster in a resourceVersion: its name, or an alias if the caller may not see the cluster. If the
    /// caller gets that right later, the label changes, and earlier resourceVersions refer to another cluster.
    pub fn label(&self, index: &Index, cluster: &ClusterName) -> String {
        if self.reader.knows_of(cluster) { cluster.to_string() } else { index.alias(cluster) }
    }

    /// How far a cluster's part is followed, in its own words.
    pub fn version(&self, index: &Index, cluster: &ClusterName) -> String {
        let state = index.state(&CollectionKey::new(cluster.clone(), self.resource.clone()));
        let version = state.map(|state| state.resource_version).filter(|version| !version.is_empty());
        version.unwrap_or_else(|| "0".to_owned())
    }

    /// What whoever knows a version does not know at all: clusters that came into view after it. What left the view since,
    /// or came into it of clusters that they know, nobody told them: they have to list again.
    pub fn missing_in(&self, known: &Composite, index: &Index) -> Result<VecDeque<ListQuery>, Error> {
        let clusters = self.clusters(index).into_iter();
        let clusters: Vec<(String, ClusterName)> =
            clusters.map(|cluster| (self.label(index, &cluster), cluster)).collect();
        let left = |known: &str| clusters.iter().all(|(label, _)| label != known);
        let turned = |(label, cluster): &(String, ClusterName)| {
            known.knows(label) && known.portion(label) != self.portion(cluster)
        };
        if known.is_leaving() || known.clusters().any(left) || clusters.iter().any(turned) {
            return Err(Error::Expired);
        }
        let unknown = clusters.iter().filter(|(label, _)| !known.knows(label));
        Ok(unknown.filter_map(|(_, cluster)| self.query(cluster)).collect())
    }

    /// Clusters that the caller may see and whose part is missing or stale. A cluster that does not serve the resource
    /// is complete.
    pub fn incomplete(&self, index: &Index) -> Vec<Incomplete> {
        let known = self.clusters(index).into_iter().filter(|cluster| self.reader.knows_of(cluster));
        known.filter_map(|cluster| self.incomplete_in(index, cluster)).collect()
    }

    /// Of one cluster, when its part is missing or old.
    pub fn incomplete_in(&self, index: &Index, cluster: ClusterName) -> Option<Incomplete> {
        let state = index.state(&CollectionKey::new(cluster.clone(), self.resource.clone()));
        if state.as_ref().is_some_and(CollectionState::is_fresh) {
            return None;
        }
        let lacks = index.served(&cluster).is_some_and(|served| {
            served.get(&self.resource).is_none() && !served.stale.contains(&self.resource.api_version())
        });
        if lacks {
            return None;
        }
        let (why, heard_at) = match state {
            Some(state) if state.complete => {
                (format!("not followed: {}", state.trouble.unwrap_or_default()), Some(state.heard_at))
            }
            Some(CollectionState { trouble: Some(trouble), .. }) => (format!("not collected: {trouble}"), None),
            Some(_) => ("still being collected".to_owned(), None),
            None => ("not collected yet".to_owned(), None),
        };
        Some(Incomplete { cluster, why, heard_at })
    }
}

/// What ResourceRegistries ask for of a resource, or of one cluster's part of it.
fn registered(index: &Index, resource: &Gvr, only: Option<&ClusterName>) -> Vec<(Clusters, Namespaces)> {
    let interests = index.interests().all();
    let asked =
        |interest: &Interest| matches!(interest.why, Why::ResourceRegistry(_)) && interest.resource == *resource;
    let part = |Interest { clusters, namespaces, .. }: Interest| match only {
        None => Some((clusters, namespaces)),
        Some(only) => clusters.contains(only).then(|| (Clusters::Names([only.clone()].into()), namespaces)),
    };
    interests.into_iter().filter(asked).filter_map(part).collect()
}

impl Incomplete {
    /// What a `Warning` header says.
    pub fn text(&self, now_ms: i64) -> String {
        let Self { cluster, why, heard_at } = self;
        match heard_at {
            Some(at) => format!("cluster {cluster} is shown as of {}s ago: {why}", (now_ms - at).max(0) / 1000),
            None => format!("cluster {cluster} is missing: {why}"),
        }
    }

    /// What list metadata says.
    pub fn meta(&self) -> Value {
        let mut meta = BTreeMap::from([("cluster", json!(self.cluster)), ("reason", json!(self.why))]);
        if let Some(at) = self.heard_at.and_then(|at| jiff::Timestamp::from_millisecond(at).ok()) {
            meta.insert("asOf", json!(at.to_string()));
        }
        json!(meta)
    }
}
